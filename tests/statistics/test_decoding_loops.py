"""Whole speculative decoding loops return the target's distribution over whole texts.

Chi-square tests of 20,000 decoded texts against the exact joint distribution of a target whose
logits depend on the last two tokens; fixed seeds, false-alarm rate 1e-6 each. The negative controls
are loops that look innocent, fail only through the joint distribution, and must be caught.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.statistics.chi_square import assert_caught, assert_fits
from tests.statistics.markov import Loop, Models

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SEQUENCES = 20_000
SIZE, LENGTH = 4, 4


def pruned() -> Affinity:
    """The drafter knows two of four tokens."""
    return Affinity.intersection(Vocabulary([1, 2], SIZE))


def virtual() -> Affinity:
    """Two kept tokens, and a virtual one that stands for the other two."""
    clusters = torch.tensor([0, -1, -1, 0])
    prior = torch.tensor([0.3, 0.3, 0.3, 0.1])
    return Affinity.virtual_tokens(Vocabulary([1, 2], SIZE), clusters, prior)


AFFINITIES = {
    "same vocabulary": lambda: Affinity.intersection(Vocabulary.identity(SIZE)),
    "pruned": pruned,
    "virtual": virtual,
    "first-order": lambda: generators.affinity("first-order", SIZE),
    "mixed": lambda: generators.affinity("mixed-2", SIZE),
}


METHODS = [0, 1]  # by token, by block
CASES = [(name, (1.0, 1.0)) for name in AFFINITIES]
CASES += [("virtual", temperatures) for temperatures in ((0.6, 1.5), (1.3, 0.5), (1.0, 0.0))]


@pytest.mark.parametrize(("name", "temperatures"), CASES)
def test_decoding_is_lossless(name: str, temperatures: tuple[float, float]) -> None:
    """At any temperatures of target and drafter."""
    models = Models.random(
        AFFINITIES[name](), target_temperature=temperatures[0], draft_temperature=temperatures[1]
    )
    assert_fits(Loop(models).texts(SEQUENCES, LENGTH), models.exact(LENGTH))


def test_greedy_decoding_has_one_outcome() -> None:
    models = Models.random(virtual(), target_temperature=0.0)
    counts = Loop(models).texts(200, LENGTH)
    context, text = 0, 0
    for _ in range(LENGTH):
        token = int(models.target[context].argmax())
        context, text = (context * SIZE + token) % SIZE**2, text * SIZE + token
    assert int(counts[text]) == 200


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafts", [1, 3])
def test_rejected_drafts_may_be_offered_again(drafts: int, method: int) -> None:
    models = Models.random(pruned())
    loop = Loop(models, drafts, feed_back_rejected=True, method=method)
    assert_fits(loop.texts(SEQUENCES, LENGTH), models.exact(LENGTH))


# ----------------------------------------------------------------------- how long a draft is


def confident_drafter(tokens: Tensor, stats: Tensor) -> Tensor:
    """Ends a draft where the drafter's likeliest column has little probability: one in `sum`."""
    confident: Tensor = 1 / stats[..., 1] > 0.5
    return confident


def confident_token(tokens: Tensor, stats: Tensor) -> Tensor:
    """Ends a draft at tokens that the drafter itself tends to get wrong."""
    return tokens != 2


@pytest.mark.parametrize("method", METHODS)
def test_a_draft_may_end_where_the_drafter_is_unsure(method: int) -> None:
    models = Models.random(pruned())
    loop = Loop(models, 3, feed_back_rejected=True, keep=confident_drafter, method=method)
    assert_fits(loop.texts(SEQUENCES, LENGTH), models.exact(LENGTH))


# ----------------------------------------------------------------------- wrong loops

WRONG: dict[str, Callable[[], Loop]] = {
    # The one rule that stays with the caller (section 5), under any random numbers.
    "a draft ends because of its own token": lambda: Loop(
        Models.random(pruned()), 3, keep=confident_token
    ),
    # The uniform that drew a rejected draft would draw at its position again (section 5).
    "rejected drafts are offered again without step keys": lambda: Loop(
        Models.random(pruned()),
        3,
        feed_back_rejected=True,
        step_keys=lambda seeds, positions: seeds,
    ),
    "a draft is evaluated at another temperature": lambda: Loop(
        Models.random(virtual()), verify_temperature=0.5
    ),
    "one seed for all sequences": lambda: Loop(
        Models.random(virtual()), step_keys=lambda seeds, positions: torch.zeros_like(seeds)
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_loop_is_caught(wrong: str) -> None:
    loop = WRONG[wrong]()
    assert_caught(loop.texts(SEQUENCES, LENGTH), loop.models.exact(LENGTH))


def test_one_key_for_all_steps_of_one_position_stream_is_caught() -> None:
    """Random numbers keyed by the place within a step: every step repeats those of the first."""
    models = Models.random(virtual())

    class SamePlaces(Loop):
        def step(
            self, text: Tensor, done: Tensor, seeds: Tensor, offered: Tensor
        ) -> tuple[Tensor, Tensor, Tensor]:
            # The context stays where it is; only the positions that key the numbers start over.
            shifted = torch.stack([row.roll(-int(n)) for row, n in zip(text, done, strict=True)])
            return super().step(shifted, torch.zeros_like(done), seeds, offered)

    loop = SamePlaces(models, step_keys=lambda seeds, positions: seeds)
    assert_caught(loop.texts(SEQUENCES, LENGTH), models.exact(LENGTH))
