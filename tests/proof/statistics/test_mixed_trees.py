"""Trees with a drawn child at each node return the target's distribution over whole texts.

Chi-square tests of texts of three tokens against the exact joint distribution of a target whose
logits depend on the last two tokens; fixed seeds, false-alarm rate 1e-6 each. The controls are
faint mistakes in random numbers, and q with the tokens that the drawn child cannot be.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests.proof.statistics.chi_square import assert_caught, assert_fits
from tests.proof.statistics.markov import METHODS, ORDER, agreeing
from tests.proof.statistics.mixed_trees import TreeLoop

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SEQUENCES, LENGTH, SIZE = 30_000, 3, 5
AT_ONCE = 50_000
MANY = pytest.param(1_000_000, marks=pytest.mark.ci)


def texts(loop: TreeLoop, sequences: int) -> Tensor:
    """In parts, whose seeds follow each other: rows of many nodes take much memory."""
    counts = torch.zeros(loop.models.size**LENGTH, dtype=torch.int64)
    for first in range(0, sequences, AT_ONCE):

        def keys(seeds: Tensor, positions: Tensor, first: int = first) -> Tensor:
            return loop.step_keys(seeds + first, positions)

        part = dataclasses.replace(loop, step_keys=keys)
        counts += part.texts(min(AT_ONCE, sequences - first), LENGTH)
    return counts


@pytest.mark.parametrize("sequences", [200_000, MANY])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("fixed", "agreement"), [(1, 0.2), (2, 0.8)])
def test_mixed_trees_are_lossless_where_mistakes_are_faint(
    fixed: int, agreement: float, method: int, sequences: int
) -> None:
    models = agreeing(agreement, SIZE)
    loop = TreeLoop(models, 3, fixed=fixed, method=method)
    assert_fits(texts(loop, sequences), models.exact(LENGTH))


WRONG: dict[str, tuple[float, dict[str, object]]] = {
    "q with the fixed tokens": (0.5, {"removes_fixed": False}),
    "q with the fixed tokens, by block": (0.5, {"removes_fixed": False, "method": 1}),
    "drafts of one depth share a word": (0.2, {"own_branches": False, "method": 1}),
}


@pytest.mark.parametrize("sequences", [300_000, MANY])
@pytest.mark.parametrize("wrong", WRONG)
def test_controls_that_only_look_lossless_are_caught(wrong: str, sequences: int) -> None:
    agreement, mistake = WRONG[wrong]
    models = agreeing(agreement, SIZE)
    loop = TreeLoop(models, 3, **mistake)  # type: ignore[arg-type]
    assert_caught(texts(loop, sequences), models.exact(LENGTH))


@pytest.mark.parametrize("fixed", [1, 2])
@pytest.mark.parametrize("agreement", [0.2, 0.8])
def test_a_child_is_accepted_as_often_as_the_rule_allows(agreement: float, fixed: int) -> None:
    """At a node with fixed children H: the sum of min(p, q_H), and p of H; within 5 standard
    errors, a false alarm in 10^6."""
    models = agreeing(agreement, SIZE)
    loop = TreeLoop(models, 1, fixed=fixed)
    text = torch.zeros(SEQUENCES, ORDER + 2, dtype=torch.int64)
    start = torch.zeros(SEQUENCES, dtype=torch.int64)
    _, accepted, _ = loop.step(text, start, torch.arange(SEQUENCES))
    p = models.target[0].double().softmax(0)
    q = loop.rest[0].double().softmax(0)
    rate = float(torch.minimum(p, q).sum() + p[loop.likeliest[0]].sum())
    error = math.sqrt(rate * (1 - rate) / SEQUENCES)
    assert abs(float(accepted.double().mean()) - rate) <= 5 * error + 1e-9
