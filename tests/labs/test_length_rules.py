"""They hold what the core's rules promise, in its own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import test_every_proposer
import test_lengths
from lossless import CONDITIONS, p_value
from test_parts import FALSE_ALARM, chain

from rdk_cuda.labs.length_rules import Confidence, EntropyBound

RULES: dict[str, Callable[..., object]] = {
    "confidence": Confidence(0.4),
    "entropy bound": EntropyBound(0.5),
}


def check(name: str, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_lengths.LENGTHS, name, RULES[name])
    proposer = partial(chain, length=RULES[name], draft_length=4)
    monkeypatch.setitem(test_every_proposer.PROPOSERS, name, proposer)
    for temperature, method in ((0.0, "token"), (1.0, "block")):
        test_lengths.test_drafts_end_early(name, temperature)
        test_every_proposer.test_a_sequence_is_the_same_alone_and_in_a_batch(name, method)
        assert p_value(proposer, method, CONDITIONS["as it is"], samples) > FALSE_ALARM


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_lossless_and_a_draft_ends_alone_as_in_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, 40_000, monkeypatch)
