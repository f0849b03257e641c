"""RSD as a proposer and a rule of the decoder. Its mathematics: proof/statistics/test_rsd.py."""

from __future__ import annotations

from typing import Any

import pytest
from table_model import TableModel, chi_square, continuations, joint, pruned
from test_parts import (
    AFFINITY,
    CAUGHT,
    DRAFTER,
    FALSE_ALARM,
    LENGTH,
    PROMPT,
    SAMPLES,
    SIZE,
    TARGET,
    VOCABULARY,
)
from test_trees_in_the_loop import HEAD
from torch import Tensor

from rdk_cuda import RecentTokens
from rdk_cuda.decoding import SpeculativeDecoder
from studies import rsd
from studies.recursive_rejection import verify_rsd
from studies.rsd import RecursiveRejection, RSDTree

SHAPES: dict[str, dict[str, Any]] = {
    "constant branching": {"branching": (3, 2, 1)},
    "a beam": {"width": 3, "passes": 3},
    "dynamic": {
        "dynamic_tokens": RecentTokens(VOCABULARY, 2, 4),
        "full_head": HEAD,
        "width": 2,
        "passes": 3,
    },
}


def decoder(shape: str) -> SpeculativeDecoder:
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    made = SpeculativeDecoder(TARGET, proposer=RSDTree(drafter, AFFINITY, **SHAPES[shape]))
    made.rule = RecursiveRejection()
    return made


def p_value(shape: str, samples: int, temperature: float) -> float:
    made = decoder(shape)
    found = continuations(lambda: made, PROMPT, LENGTH, samples, 1, temperature=temperature)
    return chi_square(found, joint(TARGET, PROMPT, LENGTH, temperature))


@pytest.mark.parametrize("samples", SAMPLES)
@pytest.mark.parametrize(("shape", "temperature"), list(zip(SHAPES, (0.6, 1.0, 1.0), strict=True)))
def test_rsd_is_lossless(shape: str, temperature: float, samples: int) -> None:
    assert p_value(shape, samples, temperature) > FALSE_ALARM


def test_control_rows_of_other_siblings_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by q of the root, wherever the node is."""

    def wrong(p: Tensor, q: Tensor, *tree: Tensor) -> Any:
        return verify_rsd(p, q[:, :1].expand_as(q), *tree)

    monkeypatch.setattr(rsd, "verify_rsd", wrong)
    assert p_value("constant branching", 2_000, 1.0) < CAUGHT


def test_what_the_rule_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="without logprobs and allowed"):
        decoder("a beam").generate([[1]], max_new_tokens=5, logprobs="raw")
