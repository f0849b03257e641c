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
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.statistics.chi_square import assert_caught, assert_fits
from tests.statistics.markov import ORDER, Models
from tests.statistics.mixed_trees import TreeLoop
from tests.statistics.test_decoding_loops import AFFINITIES, CASES, METHODS

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SEQUENCES, LENGTH, SIZE = 30_000, 3, 5
AT_ONCE = 50_000
MANY = pytest.param(1_000_000, marks=pytest.mark.ci)


def agreeing(agreement: float) -> Models:
    """A drafter that knows about the target as much as `agreement` says, 1 being all."""
    target, noise = (generators.logits(SIZE**ORDER, SIZE, seed, scale=1.2) for seed in (0, 9))
    drafter = agreement * target + (1 - agreement) * noise
    return Models(target, drafter, Affinity.intersection(Vocabulary.identity(SIZE)))


def texts(loop: TreeLoop, sequences: int) -> Tensor:
    """In parts, whose seeds follow each other: rows of many nodes take much memory."""
    counts = torch.zeros(loop.models.size**LENGTH, dtype=torch.int64)
    for first in range(0, sequences, AT_ONCE):

        def keys(seeds: Tensor, positions: Tensor, first: int = first) -> Tensor:
            return loop.step_keys(seeds + first, positions)

        part = dataclasses.replace(loop, step_keys=keys)
        counts += part.texts(min(AT_ONCE, sequences - first), LENGTH)
    return counts


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("name", "temperatures"), [*CASES, ("virtual", (0.6, 0.6))])
def test_mixed_trees_are_lossless(
    name: str, temperatures: tuple[float, float], method: int
) -> None:
    target, draft = temperatures
    models = Models.random(AFFINITIES[name](), target_temperature=target, draft_temperature=draft)
    assert_fits(texts(TreeLoop(models, 3, method=method), SEQUENCES), models.exact(LENGTH))


@pytest.mark.parametrize("method", METHODS)
def test_mixed_trees_of_a_truncated_target_have_its_distribution(method: int) -> None:
    models = Models.random(AFFINITIES["virtual"]())
    counts = texts(TreeLoop(models, 2, method=method, top_k=2), SEQUENCES)
    kept = models.target >= models.target.topk(2).values[:, 1:]
    cut = Models(models.target.masked_fill(~kept, -math.inf), models.drafter, models.affinity)
    assert_fits(counts, cut.exact(LENGTH))
    assert_caught(counts, models.exact(LENGTH))


@pytest.mark.parametrize("sequences", [200_000, MANY])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("fixed", "agreement"), [(1, 0.2), (2, 0.8)])
def test_mixed_trees_are_lossless_where_mistakes_are_faint(
    fixed: int, agreement: float, method: int, sequences: int
) -> None:
    models = agreeing(agreement)
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
    models = agreeing(agreement)
    loop = TreeLoop(models, 3, **mistake)  # type: ignore[arg-type]
    assert_caught(texts(loop, sequences), models.exact(LENGTH))


@pytest.mark.parametrize("fixed", [1, 2])
@pytest.mark.parametrize("agreement", [0.2, 0.8])
def test_a_child_is_accepted_as_often_as_the_rule_allows(agreement: float, fixed: int) -> None:
    """At a node with fixed children H: the sum of min(p, q_H), and p of H; within 5 standard
    errors, a false alarm in 10^6."""
    models = agreeing(agreement)
    loop = TreeLoop(models, 1, fixed=fixed)
    text = torch.zeros(SEQUENCES, ORDER + 2, dtype=torch.int64)
    start = torch.zeros(SEQUENCES, dtype=torch.int64)
    nothing = torch.full((SEQUENCES, 1), -1, dtype=torch.int32)
    _, accepted, _ = loop.step(text, start, torch.arange(SEQUENCES), nothing)
    p = models.target[0].double().softmax(0)
    q = loop.rest[0].double().softmax(0)
    rate = float(torch.minimum(p, q).sum() + p[loop.likeliest[0]].sum())
    error = math.sqrt(rate * (1 - rate) / SEQUENCES)
    assert abs(float(accepted.double().mean()) - rate) <= 5 * error + 1e-9
