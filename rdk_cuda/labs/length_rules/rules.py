"""Rules that end drafts, beside those of `rdk_cuda.decoding.lengths`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...decoding.lengths import Drafted


@dataclass(frozen=True)
class Confidence:
    """While the newest token's q is at least this, as `assistant_confidence_threshold` has it."""

    at_least: float = 0.4

    def __call__(self, drafted: Drafted) -> Tensor:
        return drafted.probs[:, -1] >= self.at_least


@dataclass(frozen=True)
class EntropyBound:
    """While `1 - sqrt(gamma * entropy)`, a bound on the acceptance, is at least this.

    AdaEDL (arXiv:2410.18351) with a threshold that stays the same.
    """

    at_least: float
    gamma: float = 0.2

    def __call__(self, drafted: Drafted) -> Tensor:
        return 1 - (self.gamma * drafted.entropies[:, -1]).sqrt() >= self.at_least
