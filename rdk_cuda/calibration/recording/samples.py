"""A bounded number of positions of the calibration text, as the models saw them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Samples", "at_most", "held_out_rows"]


@dataclass(frozen=True, eq=False)
class Samples:
    """Positions drawn evenly from a text: the drafter's state and the target's likeliest tokens.

    If m is V_t, everything is exact. Otherwise the target's tail is missing, and with it most of
    the gain of virtual tokens: with m = 4096 of 16384 (demo models, T = 0.7, 25 % kept) a pruned
    drafter seemed better than the full one.

    Attributes:
        hidden: `[n, d]` float32, the drafter's last hidden states.
        targets: `[n, m]` int32, the target's likeliest tokens, descending, lowest id on ties.
        target_logits: `[n, m]` float32, their raw logits.
        temperatures: the recorded ones.
        log_normalizers: `[n, len(temperatures)]` float32, log-sum-exp of `logits / T` over V_t.
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
        """`[n, m]` float32, the target's probabilities of `targets` at a recorded temperature or 0.

        Raises:
            ValueError: a temperature that was not recorded.
        """
        if temperature == 0:
            greedy = torch.zeros_like(self.target_logits)
            greedy[:, 0] = 1.0  # the likeliest come first, on a tie the lowest id
            return greedy
        if temperature not in self.temperatures:
            raise ValueError(
                f"Samples.target_probs: temperature is {temperature}; recorded were "
                f"{', '.join(map(str, self.temperatures))}"
            )
        normalizer = self.log_normalizers[:, self.temperatures.index(temperature), None]
        return torch.exp(self.target_logits / temperature - normalizer)

    def select(self, index: Tensor) -> Samples:
        """The samples at `index`, integers or a mask."""
        return Samples(
            self.hidden[index],
            self.targets[index],
            self.target_logits[index],
            self.temperatures,
            self.log_normalizers[index],
            self.contexts[index],
            self.documents[index],
        )


def at_most(samples: Samples, count: int) -> Samples:
    """Evenly spaced samples, no more than `count`."""
    if len(samples) <= count:
        return samples
    return samples.select(torch.arange(count, device="cpu") * len(samples) // count)


def held_out_rows(documents: Tensor, share: float) -> Tensor:
    """A mask `[n]` of the samples of about that share of the documents, evenly spaced.

    At least one document, unless there is only one: then none.

    Raises:
        ValueError: a share outside [0, 1).

    Example:
        >>> held_out_rows(torch.tensor([4, 4, 5, 7, 7, 9]), 0.5)
        tensor([False, False,  True, False, False,  True])
    """
    if not 0 <= share < 1:
        raise ValueError(f"held_out_rows: share is {share}; needs 0 or more and less than 1")
    members, place = documents.unique(return_inverse=True)
    count = len(members)
    if count < 2 or share == 0:
        return torch.zeros_like(documents, dtype=torch.bool)
    wanted = min(count - 1, max(1, round(share * count)))
    ranks = torch.arange(count, device="cpu")
    held = (ranks + 1) * wanted // count > ranks * wanted // count
    return held[place]
