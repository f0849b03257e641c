"""How a drafter's tokens correspond to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_shape, check_tensor, on_host, whole_number
from .token_bytes import TokenBytes, matching_ids, token_bytes

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
        target_size = whole_number("Vocabulary", "target_size", target_size, 1, _INT32_MAX)
        ids = on_host(draft_ids)
        check_tensor("Vocabulary: draft_ids", ids, "integers", "V_d >= 1")
        ids = ids.to(torch.int64, copy=True)
        needs = f"a target id in [0, {target_size}), or -1 for a token that the target lacks"
        check_entries("Vocabulary: draft_ids", ids, (ids >= -1) & (ids < target_size), needs)
        uses = torch.bincount(ids[ids >= 0], minlength=target_size)
        if int(uses.max()) > 1:
            token = int((uses > 1).nonzero()[0])
            first, second = (ids == token).nonzero().flatten()[:2].tolist()
            raise ValueError(
                f"Vocabulary: draft_ids[{first}] and draft_ids[{second}] are both {token}; needs "
                "each target id once (name one of them and give the others -1)"
            )

        object.__setattr__(self, "draft_ids", ids)
        object.__setattr__(self, "target_size", target_size)
        object.__setattr__(self, "kept", uses.nonzero().flatten())
        object.__setattr__(self, "pruned", (uses == 0).nonzero().flatten())

    @classmethod
    def identity(cls, size: int) -> Vocabulary:
        """Share one vocabulary of `size` tokens between drafter and target."""
        return cls(torch.arange(size, device="cpu"), size)

    @classmethod
    def between(
        cls,
        drafter_tokenizer: Any,
        target_tokenizer: Any,
        *,
        draft_size: int | None = None,
        target_size: int | None = None,
    ) -> Vocabulary:
        """Match two tokenizers' tokens by their bytes.

        Token-level intersection (arXiv:2502.05202). Special tokens match by name. If several tokens
        have the same bytes, `token_bytes.matching_ids` pairs them. A drafter token without a
        partner has the target id -1.

        Args:
            drafter_tokenizer, target_tokenizer: whatever `token_bytes` takes: tokenizers of
                Hugging Face, or mappings from bytes to ids.
            draft_size, target_size: `V_d` and `V_t`, the widths of the models' logits, which may be
                more than their tokenizers have tokens, or fewer by special ones. None: as many.

        Raises:
            TypeError, ValueError: as `token_bytes`, or a size below the number of tokens.

        Example:
            >>> ours, theirs = {b"a": 0, b"b": 1, b" a": 2}, {b"ab": 0, b" a": 1, b"a": 2}
            >>> Vocabulary.between(theirs, ours).draft_ids.tolist()
            [-1, 2, 0]
        """
        drafter = token_bytes(drafter_tokenizer).within(draft_size)
        target = token_bytes(target_tokenizer).within(target_size)
        ids = torch.full(
            (_size("draft_size", draft_size, drafter),), -1, dtype=torch.int64, device="cpu"
        )
        ids[: len(drafter.spellings)] = torch.tensor(
            matching_ids(drafter, target), dtype=torch.int64, device="cpu"
        )
        return cls(ids, _size("target_size", target_size, target))

    @classmethod
    def most_likely(
        cls, scores: Tensor, count: int, *, always: Sequence[int] | Tensor = ()
    ) -> Vocabulary:
        """Keep the `count` tokens with the highest scores, in ascending id order.

        Args:
            scores: `[V_t]`, any numbers. Counts in a corpus keep the most frequent tokens (FR-Spec,
                arXiv:2502.14856), means of the target's probabilities those it gives most mass to.
            count: how many tokens to keep, 1 to `V_t`. Among equals the lowest ids are kept.
            always: target ids that are kept whatever they score, and are counted: special tokens
                and byte fallbacks (`rdk_cuda.vocabulary.indispensable.indispensable_tokens`).

        Raises:
            ValueError: scores that are no vector or hold NaN, a count beyond V_t or below the
                number of tokens to keep always, or one of those outside `[0, V_t)`.

        Example:
            >>> scores = torch.tensor([0.2, 0.5, 0.0, 0.3])
            >>> Vocabulary.most_likely(scores, 2).draft_ids.tolist()
            [1, 3]
            >>> Vocabulary.most_likely(scores, 2, always=[2]).draft_ids.tolist()
            [1, 2]
        """
        name, scores, first = "Vocabulary.most_likely", on_host(scores), on_host(always)
        check_shape(f"{name}: scores", scores, "V_t")
        check_entries(f"{name}: scores", scores, ~scores.isnan(), "numbers")
        size = scores.numel()
        if first.numel():
            check_tensor(f"{name}: always", first, "integers", "n")
        first = first.long().unique()
        inside, needs = (first >= 0) & (first < size), f"target ids in [0, {size})"
        check_entries(f"{name}: always", first, inside, needs)
        count = whole_number(name, "count", count, max(1, first.numel()), size)
        by_score = scores.sort(descending=True, stable=True).indices
        others = by_score[~torch.isin(by_score, first)][: count - first.numel()]
        return cls(torch.cat([first, others]).sort().values, size)

    def coverage(self, mean_probs: Tensor) -> float:
        """Compute the share of the mass that lies on kept tokens, 0 to 1.

        Args:
            mean_probs: `[V_t]`, how often each token occurs: mean probabilities or counts.

        Raises:
            ValueError: another shape, negative or infinite numbers, or no mass at all.

        Example:
            >>> Vocabulary([1, 3], target_size=4).coverage(torch.tensor([2, 5, 0, 3]))
            0.8
        """
        name, mass = "Vocabulary.coverage: mean_probs", on_host(mean_probs).double()
        check_shape(name, mass, self.target_size)
        total = mass.sum()
        sound = (mass >= 0) & mass.isfinite() & (total > 0) & total.isfinite()
        needs = "finite numbers, none negative, some positive, and a finite sum"
        check_entries(name, mass, sound, needs)
        return float(mass[self.kept].sum() / mass.sum())

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


def _size(name: str, size: int | None, tokens: TokenBytes) -> int:
    count = len(tokens.spellings)
    return count if size is None else whole_number("Vocabulary.between", name, size, count)
