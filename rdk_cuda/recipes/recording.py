"""A recording: sums over a text, and a bounded number of its positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..dynamic_tokens import SuccessorCounts

_SUCCESSOR_TARGETS = 256  # likeliest next tokens of a sample that count as successors

Each = Callable[[Sequence[Any], str], Iterable[Any]]
"""Yields the items one after the other and shows the progress: `each(items, description)`."""


def silently(items: Sequence[Any], description: str) -> Iterable[Any]:
    return items


@dataclass(frozen=True, eq=False)
class Samples:
    """Positions drawn evenly from a text: the drafter's state and the target's likeliest tokens.

    If m is V_t, everything is exact. Otherwise the target's tail is missing, and with it most of
    the gain of virtual tokens. A temperature that was not recorded is a `ValueError`, everywhere.

    Attributes:
        hidden: `[n, d]` float32, the drafter's last hidden states.
        targets, target_logits: `[n, m]` int32 and float32, the target's likeliest tokens,
            descending, lowest id on ties, and their raw logits.
        temperatures, log_normalizers: the recorded ones, and `[n, len(temperatures)]` float32, of
            each the log-sum-exp of `logits / T` over V_t.
        contexts: `[n, w]` int32, the last w tokens before the prediction, newest last, -1 in
            front where there were fewer.
        documents: `[n]` int64, the document of each position.
    """

    hidden: Tensor
    targets: Tensor
    target_logits: Tensor
    temperatures: tuple[float, ...]
    log_normalizers: Tensor
    contexts: Tensor
    documents: Tensor

    def __len__(self) -> int:
        return self.hidden.shape[0]

    def target_probs(self, temperature: float) -> Tensor:
        """`[n, m]` float32, the target's probabilities of `targets` at a temperature, or at 0."""
        if temperature == 0:
            greedy = torch.zeros_like(self.target_logits)
            greedy[:, 0] = 1.0  # the likeliest come first, on a tie the lowest id
            return greedy
        place = _place("Samples.target_probs", self.temperatures, temperature)
        normalizer = self.log_normalizers[:, place, None]
        return torch.exp(self.target_logits / temperature - normalizer)

    def spaced(self, count: int) -> Samples:
        """Take at most `count` samples, evenly spaced."""
        step = max(1, -(-len(self) // count))
        return self.select(torch.arange(0, len(self), step, device="cpu"))

    def select(self, index: Tensor) -> Samples:
        """Take the samples that an index or a mask names."""
        own = vars(self).items()
        taken: dict[str, Any] = {name: t[index] for name, t in own if isinstance(t, Tensor)}
        return replace(self, **taken)


@dataclass(frozen=True, eq=False)
class Recording:
    """Means over the positions of a text, and some of the positions themselves; on the CPU.

    Attributes:
        temperatures: of the target, at which probabilities were taken. Another one is a
            `ValueError`, everywhere.
        mean_probs: `[len(temperatures), V_t]` float64, the mean of the target's probabilities.
        counts: `[V_t]` int64, how often each token is in the text.
        hidden_second_moment: `[d, d]` float64, the mean of `x x^T` over the drafter's last hidden
            states x.
        samples: positions, each as likely as any other to be among them, in the text's order.
    """

    temperatures: tuple[float, ...]
    mean_probs: Tensor
    counts: Tensor
    hidden_second_moment: Tensor
    samples: Samples

    @property
    def positions(self) -> int:
        """How many positions were read."""
        return int(self.counts.sum())

    def mean_probs_at(self, temperature: float) -> Tensor:
        """`[V_t]` float64, the mean probabilities at a recorded temperature."""
        place = _place("Recording.mean_probs_at", self.temperatures, temperature)
        return self.mean_probs[place]

    def at(self, temperature: float) -> Recording:
        """The recording as if made for this temperature alone; it shares memory with this one."""
        place = _place("Recording.at", self.temperatures, temperature)
        alone, at = slice(place, place + 1), (temperature,)
        normalizers = self.samples.log_normalizers[:, alone]
        samples = replace(self.samples, temperatures=at, log_normalizers=normalizers)
        return replace(self, temperatures=at, mean_probs=self.mean_probs[alone], samples=samples)


def _place(name: str, recorded: tuple[float, ...], temperature: float) -> int:
    if temperature not in recorded:
        raise ValueError(
            f"{name}: temperature is {temperature}; recorded were {', '.join(map(str, recorded))}"
        )
    return recorded.index(temperature)


def at_most(samples: Samples, count: int) -> Samples:
    if len(samples) <= count:
        return samples
    return samples.select(torch.arange(count, device="cpu") * len(samples) // count)


def held_out_rows(documents: Tensor, share: float) -> Tensor:
    """A mask `[n]` of the samples of about that share of the documents, evenly spaced.

    At least one document, unless there is only one: then none.
    """
    members, place = documents.unique(return_inverse=True)
    count = len(members)
    if count < 2:
        return torch.zeros_like(documents, dtype=torch.bool)
    wanted = min(count - 1, max(1, round(share * count)))
    ranks = torch.arange(count, device="cpu")
    held = (ranks + 1) * wanted // count > ranks * wanted // count
    return held[place]


def successor_counts(documents: Iterable[Sequence[int]], recording: Recording) -> SuccessorCounts:
    """Which token follows which: in all the text there is, and by the target on the samples."""
    counts = SuccessorCounts(recording.counts.numel())
    for document in documents:
        counts.add(document)
    samples = recording.samples
    samples = samples.select(samples.contexts[:, -1] >= 0)
    if len(samples):
        probs = samples.target_probs(samples.temperatures[0])[:, :_SUCCESSOR_TARGETS]
        targets = samples.targets[:, :_SUCCESSOR_TARGETS]
        counts.add_probs(samples.contexts[:, -1], targets, probs)
    return counts
