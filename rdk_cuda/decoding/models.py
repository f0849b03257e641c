"""The protocols of a target and of a drafter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from .generation import Continuation

Ragged: TypeAlias = Sequence[Sequence[int]]
"""Of each sequence a list: its new tokens, or the parents of its nodes."""


class Output(NamedTuple):
    """The result of `CausalModel.feed`.

    Attributes:
        logits: `[B, n, V]`.
        hidden: `[B, n, d]`, the states that the head was applied to, if asked for.
        states: for each sequence `[len(tokens[b]), D]`, the hidden states of all that it was fed,
            for a `StateDrafter`, if asked for.
    """

    logits: Tensor
    hidden: Tensor | None = None
    states: Sequence[Tensor] | None = None


class CausalModel(Protocol):
    """A target or a drafter: token sequences that grow at their ends and can be cut back.

    Attributes:
        vocabulary_size: width of the logits, V_t or V_d. A drafter, too, is fed target ids.
        device: of the logits.
        lengths: how many tokens each sequence has been fed and still remembers.
        context: how many it can remember; `math.inf` if any number.
    """

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def lengths(self) -> Sequence[int]: ...
    @property
    def context(self) -> float: ...

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""

    def feed(self, tokens: Ragged, keep: Sequence[int]) -> Output:
        """Append `tokens[b]`, any number, to sequence b; predict what follows its last `keep[b]`.

        Rows `[b, :keep[b]]` of the output belong to those tokens, in order, and n = max(keep).
        Other rows may hold anything.
        """
        ...

    def rollback(self, lengths: Sequence[int]) -> None:
        """Cut sequence b back to `lengths[b]` tokens; a shorter one stays as it is."""


@runtime_checkable
class StateDrafter(CausalModel, Protocol):
    """A drafter that reads the target's hidden states next to the tokens, as EAGLE-3's do.

    It drafts after tokens whose states it knows, all but the newest, so not before the target has
    read the prompt. Further along a draft it stands in for the target's states by itself.

    Attributes:
        observed: how many tokens of each sequence it has the target's states of.
    """

    @property
    def observed(self) -> Sequence[int]: ...

    def observe(self, states: Sequence[Tensor]) -> None:
        """Take the target's states `[n, D]` of the next n tokens of each sequence.

        Forgets what it computed of those tokens without them.
        """


@runtime_checkable
class TreeModel(CausalModel, Protocol):
    """A model that reads trees, each branch as if it were alone."""

    def feed_tree(self, tokens: Ragged, keep: Sequence[int], parents: Ragged) -> Output:
        """Append as `feed`; the last of `tokens[b]` are nodes of a tree behind the others.

        Args:
            tokens, keep: as in `feed`. All new nodes are kept.
            parents: of each sequence, which earlier node each node is a child of, or -1 for the
                token before the tree: of all nodes since the last `rollback`, also those that were
                fed before.
        """
        ...

    def keep_paths(self, paths: Ragged) -> None:
        """Keep the nodes of one branch, from the top, as ordinary tokens, and forget the others.

        `rollback` without it forgets all nodes.
        """


def feed_unread(
    model: CausalModel, sequences: Sequence[Continuation], keep: Sequence[int]
) -> Output:
    """Let a model read what it has not read yet, in sequences where a prediction is wanted."""
    unread = [
        s.context[read:] if kept else []
        for s, read, kept in zip(sequences, model.lengths, keep, strict=True)
    ]
    return model.feed(unread, keep)


class Reading(NamedTuple):
    """The models' outputs after the last n of the L tokens of B pieces of text.

    n is L, or L - 1 of a drafter that has no state after a text's first token. It is the same
    difference for every L.

    Attributes:
        target_logits: `[B, n, V_t]`, any floating dtype.
        hidden: `[B, n, d]`, the drafter's last hidden states, which its LM head is applied to.
    """

    target_logits: Tensor
    hidden: Tensor


Read = Callable[[Tensor], Reading]
"""From token ids, `[B, L]` int64 on the CPU, to a `Reading`."""
