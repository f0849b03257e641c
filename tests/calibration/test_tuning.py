"""Chance does not switch anything off: what is said to hurt costs more than documents differ."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.recipes.choose import hurts, tune
from rdk_cuda.recipes.recording import Samples

# The target always emits token 0. Of the drafter with the head `TRUSTING`, it accepts sigmoid(h)
# where the hidden state is h; of the other half.
VOCABULARY = Vocabulary.identity(2)
TRUSTING = torch.tensor([[1.0], [0.0]])
HALF = PrunedDrafter(VOCABULARY, Affinity.intersection(VOCABULARY), torch.zeros(2, 1))
FULL_HEAD = TRUSTING, None


def samples(gains: Tensor) -> Samples:
    """What is accepted beyond a half: `[documents, positions]`."""
    hidden = (0.5 + gains).logit().reshape(-1, 1)
    count = len(hidden)
    return Samples(
        hidden=hidden,
        targets=torch.tensor([0, 1], dtype=torch.int32).expand(count, 2),
        target_logits=torch.tensor([0.0, -100.0]).expand(count, 2),
        temperatures=(1.0,),
        log_normalizers=torch.zeros(count, 1),
        contexts=torch.zeros(count, 1, dtype=torch.int32),
        documents=torch.arange(len(gains)).repeat_interleave(gains.shape[1]),
    )


def said_to_hurt(gains: Tensor) -> bool:
    drafter = replace(HALF, weight=TRUSTING)
    return hurts(drafter, HALF, samples(gains), FULL_HEAD, 1.0)


def of_documents(means: Tensor, generator: torch.Generator) -> Tensor:
    """40 positions around each document's mean."""
    return means[:, None] + 0.01 * torch.randn(len(means), 40, generator=generator)


@pytest.mark.parametrize(("loss", "at_most", "at_least"), [(0.0, 14, 0), (0.02, 200, 195)])
def test_a_drafter_as_good_as_another_is_seldom_said_to_hurt(
    loss: float, at_most: int, at_least: int
) -> None:
    """Of 200 texts of 30 documents that differ by 0.02.

    Two standard errors are passed by chance with probability 0.027 (Student's t, 29 degrees of
    freedom): more than 14 of 200 has probability 3e-4. The control loses five standard errors.
    """
    generator = torch.Generator().manual_seed(5)
    hurting = 0
    for _ in range(200):
        means = 0.02 * torch.randn(30, generator=generator) - loss
        hurting += said_to_hurt(of_documents(means, generator))
    assert at_least <= hurting <= at_most


def test_positions_of_a_document_are_no_evidence_about_others() -> None:
    """Judged by its 4,000 positions, the loss would be 12 standard errors."""
    generator = torch.Generator().manual_seed(0)
    gains = torch.tensor([-0.03, 0.02]).repeat_interleave(2000).reshape(2, 2000)
    gains = gains + 0.01 * torch.randn(gains.shape, generator=generator)
    loss = -gains.reshape(-1)
    assert loss.mean() > 10 * loss.std() / len(loss) ** 0.5
    assert not said_to_hurt(gains)


def test_one_document_decides_nothing_and_what_differs_nowhere_is_not_worth_its_cost() -> None:
    assert not said_to_hurt(torch.full((1, 50), -0.3))
    assert said_to_hurt(torch.full((2, 50), -0.3))
    assert said_to_hurt(torch.zeros(3, 4))
    assert not said_to_hurt(torch.full((3, 4), 0.1))


def test_of_no_candidates_none_is_chosen() -> None:
    with pytest.raises(ValueError, match="got no candidates"):
        tune([], samples(torch.zeros(2, 2)), FULL_HEAD, 1.0)
