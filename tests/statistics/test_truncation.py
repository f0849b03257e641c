"""Three tokens out of a truncated target have its joint distribution, on every backend.

Chi-square tests with fixed seeds, false-alarm rate 1e-6 each. The drafters have virtual tokens, and
rejected drafts are offered anew as dynamic tokens.
"""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy")  # a machine with a GPU may lack it

from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests.devices import MACHINES
from tests.statistics.chi_square import assert_caught, assert_fits
from tests.statistics.markov import Loop, Models
from tests.statistics.test_decoding_loops import AFFINITIES

LENGTH, DRAFTS, TOP_K = 3, 2, 2


class WrongResidual(Loop):
    """Truncates p where drafts are accepted, but draws residuals from all of p."""

    def step(
        self, text: Tensor, done: Tensor, seeds: Tensor, offered: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        output, accepted, drafted = super().step(text, done, seeds, offered)
        whole = Loop(self.models, self.drafts, self.feed_back_rejected)
        others, as_many, _ = whole.step(text, done, seeds, offered)
        rejected = (accepted < self.drafts) & (accepted == as_many)
        output[rejected, accepted[rejected]] = others[rejected, accepted[rejected]]
        return output, accepted, drafted


def truncated() -> tuple[Models, Models]:
    """Models, and the same with what top-k leaves of the target."""
    models = Models.random(AFFINITIES["virtual"]())
    kept = models.target >= models.target.topk(TOP_K).values[:, -1:]
    target = models.target.masked_fill(~kept, -math.inf)
    return models, Models(target, models.drafter, models.affinity)


@pytest.mark.ci
def test_three_tokens_of_a_truncated_target_have_its_joint_distribution(device: str) -> None:
    models, cut = truncated()
    sequences = 2_000 if device in MACHINES else 20_000
    counts = Loop(models, DRAFTS, feed_back_rejected=True, top_k=TOP_K).texts(sequences, LENGTH)
    assert_fits(counts, cut.exact(LENGTH))
    assert_caught(counts, models.exact(LENGTH))


@pytest.mark.ci
def test_residuals_of_the_untruncated_target_are_caught(device: str) -> None:
    """The control."""
    models, cut = truncated()
    sequences = 500 if device in MACHINES else 5_000
    loop = WrongResidual(models, DRAFTS, feed_back_rejected=True, top_k=TOP_K)
    assert_caught(loop.texts(sequences, LENGTH), cut.exact(LENGTH))
