"""How a drafter's tokens correspond to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Vocabulary"]

_INT32_MAX = 2**31 - 1  # the operators index tokens with 32 bits (DESIGN section 4)


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Vocabulary:
    """A drafter's vocabulary, each of its tokens named by the target id it stands for.

    Immutable. Two vocabularies are equal if they map the same tokens in the same order.

    Args:
        draft_ids: `[V_d]` integers, the target id of each drafter token, -1 for a token that the
            target does not have. Any order; no target id twice.
        target_size: `V_t`, the size of the target's vocabulary.

    Attributes:
        draft_ids: `[V_d]` int64 on the CPU.
        target_size: `V_t`.
        kept: int64, the target ids that some drafter token stands for, ascending.
        pruned: int64, all other target ids, ascending.

    Raises:
        ValueError: an empty vocabulary, an id outside `[-1, V_t)`, or a target id used twice.

    Example:
        >>> vocabulary = Vocabulary([4, -1, 0], target_size=6)
        >>> vocabulary
        Vocabulary(draft_size=3, target_size=6, kept=2, pruned=4)
        >>> vocabulary.pruned.tolist()
        [1, 2, 3, 5]
    """

    draft_ids: Tensor
    target_size: int
    kept: Tensor
    pruned: Tensor

    def __init__(self, draft_ids: Sequence[int] | Tensor, target_size: int) -> None:
        if not 1 <= target_size <= _INT32_MAX:
            raise ValueError(f"Vocabulary: target_size is {target_size}; needs 1 to 2^31 - 1")
        ids = torch.as_tensor(draft_ids).detach()
        if ids.dim() != 1 or ids.numel() == 0:
            raise ValueError(
                f"Vocabulary: draft_ids has shape {list(ids.shape)}; needs [V_d] with V_d >= 1"
            )
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"Vocabulary: draft_ids has dtype {ids.dtype}; needs integers")
        ids = ids.to("cpu", torch.int64, copy=True)

        outside = ((ids < -1) | (ids >= target_size)).nonzero()
        if outside.numel():
            at = int(outside[0])
            raise ValueError(
                f"Vocabulary: draft_ids[{at}] is {int(ids[at])}; needs a target id in "
                f"[0, {target_size}), or -1 for a token that the target does not have"
            )
        uses = torch.bincount(ids[ids >= 0], minlength=target_size)
        if int(uses.max()) > 1:
            token = int((uses > 1).nonzero()[0])
            first, second = (ids == token).nonzero().flatten()[:2].tolist()
            raise ValueError(
                f"Vocabulary: draft_ids[{first}] and draft_ids[{second}] are both {token}; needs "
                "each target id once (name one of them and give the others -1)"
            )

        object.__setattr__(self, "draft_ids", ids)
        object.__setattr__(self, "target_size", int(target_size))
        object.__setattr__(self, "kept", uses.nonzero().flatten())
        object.__setattr__(self, "pruned", (uses == 0).nonzero().flatten())

    @classmethod
    def identity(cls, size: int) -> Vocabulary:
        """Drafter and target share one vocabulary of `size` tokens."""
        return cls(torch.arange(size), size)

    @classmethod
    def most_likely(cls, mean_probs: Tensor, count: int) -> Vocabulary:
        """Keeps the `count` likeliest tokens (FR-Spec, arXiv:2502.14856), in ascending id order.

        Args:
            mean_probs: `[V_t]`, how often each token occurs: mean probabilities or counts.
            count: how many tokens to keep, 1 to `V_t`. Among equals the lowest ids are kept.

        Example:
            >>> Vocabulary.most_likely(torch.tensor([0.2, 0.5, 0.0, 0.3]), 2).draft_ids.tolist()
            [1, 3]
        """
        probs = torch.as_tensor(mean_probs).detach().cpu()
        if probs.dim() != 1 or bool(probs.isnan().any()):
            raise ValueError(
                f"Vocabulary.most_likely: mean_probs has shape {list(probs.shape)}"
                f"{' and holds NaN' if probs.isnan().any() else ''}; needs [V_t] numbers"
            )
        if not 1 <= count <= probs.numel():
            raise ValueError(
                f"Vocabulary.most_likely: count is {count}; needs 1 to V_t = {probs.numel()}"
            )
        likeliest = probs.sort(descending=True, stable=True).indices[:count]
        return cls(likeliest.sort().values, probs.numel())

    @property
    def draft_size(self) -> int:
        """`V_d`, the size of the drafter's vocabulary."""
        return self.draft_ids.numel()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return self.target_size == other.target_size and torch.equal(
            self.draft_ids, other.draft_ids
        )

    def __hash__(self) -> int:
        return hash((self.target_size, self.draft_ids.numpy().tobytes()))

    def __repr__(self) -> str:
        return (
            f"Vocabulary(draft_size={self.draft_size}, target_size={self.target_size}, "
            f"kept={self.kept.numel()}, pruned={self.pruned.numel()})"
        )
