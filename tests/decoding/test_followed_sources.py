"""Sources that read only what is new name what they do when they are called with everything."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdk_cuda import (
    CombinedTokens,
    RecentTokens,
    ScreenedTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.dynamic_tokens import Contexts, Followed

SIZE = 40
VOCABULARY = Vocabulary(range(0, SIZE, 3), SIZE)
ANOTHER = Vocabulary(range(5, SIZE, 4), SIZE)
HIDDEN = torch.eye(SIZE)
IDS = [*range(SIZE), *range(1, SIZE, 3), -1, SIZE, 2**40, -(2**40)]


def table(vocabulary: Vocabulary, seed: int) -> SuccessorTable:
    counts = SuccessorCounts(SIZE)
    counts.add(torch.randint(SIZE, (600,), generator=torch.Generator().manual_seed(seed)))
    return SuccessorTable.from_counts(counts, vocabulary, width=7)


def lengths(contexts: Contexts) -> Tensor:
    """A user's own source: some tokens that go by how long a sequence is, or by its last one."""
    return torch.tensor([[len(c) % SIZE, c[-1] % SIZE if len(c) else -1, 1] for c in contexts])


class Counting:
    """A user's own source that keeps state: how often a token has come, in each sequence."""

    def __call__(self, contexts: Contexts) -> Tensor:
        return torch.tensor([[list(c).count(7), len(c) % SIZE] for c in contexts])

    def follow(self, batch_size: int) -> Callable[..., Tensor]:
        held: list[list[int]] = [[] for _ in range(batch_size)]

        def named(kept: Sequence[int], new: Sequence[Sequence[int]]) -> Tensor:
            for own, length, tokens in zip(held, kept, new, strict=True):
                own[length:] = tokens
            return self(held)

        return named


class Backwards(RecentTokens):
    """Overrides what the state of `RecentTokens` would name."""

    def __call__(self, contexts: Contexts) -> Tensor:
        return super().__call__(contexts).flip(1)


class Reversed(SuccessorTable):
    """The same of a table."""

    def __call__(self, contexts: Contexts) -> Tensor:
        return super().__call__(contexts).flip(1)


RECENT = RecentTokens(VOCABULARY, width=3, window=11)
WIDE = RecentTokens(ANOTHER, width=9, window=6)
TABLE = table(VOCABULARY, 0)
SCREEN = ScreenedTokens.from_factors(
    VOCABULARY, torch.eye(SIZE)[VOCABULARY.pruned], HIDDEN, width=4
)
SOURCES: dict[str, Any] = {
    "recent": RECENT,
    "recent, all of a short window": RecentTokens(VOCABULARY, width=20, window=1),
    "recent, in more columns": CombinedTokens([RECENT], VOCABULARY, width=8),
    "successors": TABLE,
    "both": CombinedTokens([RECENT, TABLE], VOCABULARY, width=8),
    "both, cut": CombinedTokens([RECENT, TABLE], VOCABULARY, width=4),
    "of other vocabularies": CombinedTokens([WIDE, table(ANOTHER, 1), RECENT], VOCABULARY, 12),
    "and a screen": CombinedTokens([RECENT, TABLE, SCREEN], VOCABULARY, width=9),
    "in each other": CombinedTokens(
        [CombinedTokens([WIDE, TABLE], ANOTHER, 5), RECENT], VOCABULARY
    ),
    "a user's own": lengths,
    "with state": Counting(),
    "with these": CombinedTokens([RECENT, lengths, Counting(), TABLE], VOCABULARY, width=9),
    "overridden": Backwards(VOCABULARY, width=3, window=11),
    # Neither of these is one call of the operator.
    "overridden, then successors": CombinedTokens([Backwards(VOCABULARY), TABLE], VOCABULARY),
    "a table that is": CombinedTokens(
        [RECENT, Reversed(TABLE.offsets, TABLE.tokens, TABLE.width)], VOCABULARY, width=8
    ),
    "of a table of fewer tokens": CombinedTokens(
        [RECENT, SuccessorTable(torch.arange(5).int(), torch.tensor([1, 2, 0, 0]).int(), width=1)],
        VOCABULARY,
    ),
    "of another vocabulary": CombinedTokens([RECENT, TABLE], ANOTHER, width=8),
}


def histories(seed: int, batch: int, calls: int) -> list[tuple[list[int], list[list[int]]]]:
    """Draw what is kept and new in each call; at times a sequence goes and another joins."""
    rng, held, found = random.Random(seed), [0] * batch, []
    for _ in range(calls):
        kept = [
            rng.choice([own, own, own, max(0, own - rng.randint(1, 4)), rng.randint(0, own), 0])
            for own in held
        ]
        counts = [rng.choice([0, 1, 1, 1, 2, 5, 30 if k < 9 else 1]) for k in kept]
        new = [rng.choices(IDS, k=count) for count in counts]
        held = [k + count for k, count in zip(kept, counts, strict=True)]
        found.append((kept, new))
    return found


def follow(source: Any, seed: int, batch: int, calls: int, wrong: int = 0) -> int:
    """How many calls name something else; a control rolls back to `wrong` tokens too many."""
    followed, contexts, differ = Followed(source, batch), [list[int]() for _ in range(batch)], 0
    rng = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {}
    for kept, new in histories(seed, batch, calls):
        before = [len(context) for context in contexts]
        for context, length, tokens in zip(contexts, kept, new, strict=True):
            context[length:] = tokens
        if getattr(source, "reads_hidden", False):
            options["hidden"] = torch.randn(batch, SIZE, generator=rng)
        told = [min(k + wrong, b) if k < b else k for k, b in zip(kept, before, strict=True)]
        followed.read(told, new)
        tokens = followed(**options)
        if wrong:  # as if it had been told right, from here on
            followed.contexts[:] = [list(context) for context in contexts]
        expected = source(contexts, **options)
        assert tokens.shape == expected.shape
        assert tokens.dtype == expected.dtype
        differ += not torch.equal(tokens, expected)
    return differ


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_is_followed_names_in_every_call_what_all_of_it_would(source: Any, batch: int) -> None:
    assert follow(source, seed=batch, batch=batch, calls=120 if batch == 1 else 25) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 7), st.integers(1, 12))
def test_so_it_does_for_any_history_width_and_window(
    seed: int, batch: int, width: int, window: int
) -> None:
    recent = RecentTokens(VOCABULARY, width, window)
    assert follow(recent, seed, batch, calls=30) == 0
    assert follow(CombinedTokens([recent, TABLE], VOCABULARY, 6), seed, batch, calls=30) == 0


@pytest.mark.parametrize("name", ["recent", "successors", "both", "a user's own", "with state"])
def test_control_a_rollback_that_is_off_by_one_is_caught(name: str) -> None:
    assert follow(SOURCES[name], seed=1, batch=8, calls=40) == 0
    assert follow(SOURCES[name], seed=1, batch=8, calls=40, wrong=1) > 0


def test_a_rollback_beyond_what_was_read_is_refused() -> None:
    followed = Followed(RECENT, 2)
    followed.read([0, 0], [[1, 2], [4]])
    for kept in ([2, 2], [-1, 0]):
        with pytest.raises(ValueError, match=r"kept\[\d\] is .*; needs 0 to the sequence's length"):
            followed.read(kept, [[], []])
