"""A target and a drafter that see the last token only, text of the target, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import Material, successor_counts
from rdk_cuda.decoding.models import Reading
from rdk_cuda.drafter import FullHead, PrunedDrafter
from rdk_cuda.recipes.choose import sampled_acceptance
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.record import record
from rdk_cuda.recipes.stages.pruning import Pruning

V, D, KEPT = 60, 6, 15
TEMPERATURES = (1.0, 0.7)


@dataclass(frozen=True, eq=False)
class MarkovPair:
    """Both models as tables of the last token.

    Attributes:
        target_logits: `[V, V]`.
        hidden: `[V, d]`, the drafter's.
        weight, bias: its full head.
    """

    target_logits: Tensor
    hidden: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def random(cls, *, noise: float = 0.7, seed: int = 21) -> MarkovPair:
        """The target's logits are the drafter's and noise. The tokens' ranks are no frequencies."""
        random = torch.Generator().manual_seed(seed)
        hidden, weight = (torch.randn(V, D, generator=random) for _ in range(2))
        bias = 1.2 * torch.randn(V, generator=random)
        logits = torch.nn.functional.linear(hidden, 0.7 * weight, bias)
        target = logits + noise * torch.randn(V, V, generator=random)
        return cls(target, hidden, 0.7 * weight, bias)

    @property
    def full_head(self) -> FullHead:
        """What `Material` and `sampled_acceptance` want."""
        return self.weight, self.bias

    @property
    def drafter_logits(self) -> Tensor:
        """`[V, V]`, of the full drafter."""
        return torch.nn.functional.linear(self.hidden, *self.full_head)

    def read(self, ids: Tensor) -> Reading:
        """As `record` and `measure_acceptance` want it."""
        return Reading(self.target_logits[ids], self.hidden[ids])

    def documents(self, count: int = 9, length: int = 30, seed: int = 22) -> list[list[int]]:
        """Text that the target writes."""
        random = torch.Generator().manual_seed(seed)
        probs = self.target_logits.softmax(-1)
        tokens = [torch.randint(V, (count,), generator=random)]
        for _ in range(length - 1):
            tokens.append(torch.multinomial(probs[tokens[-1]], 1, generator=random)[:, 0])
        documents: list[list[int]] = torch.stack(tokens, 1).tolist()
        return documents

    def likeliest(self, count: int = KEPT) -> Vocabulary:
        """The tokens that this target likes best, averaged over last tokens."""
        return Vocabulary.most_likely(self.target_logits.softmax(-1).mean(0), count)


def windows(documents: Sequence[Sequence[int]]) -> list[Window]:
    """One for each document."""
    return [Window(place, list(ids)) for place, ids in enumerate(documents)]


def material(
    pair: MarkovPair,
    documents: Sequence[Sequence[int]] | None = None,
    temperatures: Sequence[float] = TEMPERATURES,
) -> Material:
    """All positions of a text, all targets of each, and what follows what."""
    documents = pair.documents() if documents is None else documents
    recording = record(
        pair.read, windows(documents), temperatures=temperatures, memory=1 << 26, context=64
    )
    return Material(recording, pair.full_head, successor_counts(documents, recording))


def rate(pruning: Pruning, drafter: PrunedDrafter, temperature: float) -> float:
    """How much of a drafter the target accepts, at the samples."""
    rates = sampled_acceptance(pruning.samples, drafter, pruning.full_head, temperature)
    return float(rates.double().mean())
