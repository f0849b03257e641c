"""Combined tokens: what several sources name, each token once, in the order of the sources."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from rdk_cuda import (
    CombinedTokens,
    RecentTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.dynamic_tokens import Contexts

SIZE = 9
VOCABULARY = Vocabulary([3, 0], SIZE)
IDS = st.integers(-1, SIZE)


class Constant:
    """Names the same tokens whatever the context."""

    def __init__(self, tokens: list[int], dtype: torch.dtype = torch.int64) -> None:
        self.tokens = torch.tensor(tokens, dtype=dtype)

    def __call__(self, contexts: Contexts) -> torch.Tensor:
        return self.tokens.expand(len(contexts), -1)


def recent_and_successors(width: int) -> CombinedTokens:
    counts = SuccessorCounts(SIZE)
    counts.add([1, 2, 1, 4, 1, 2, 5, 2, 6, 6, 7, 8])
    table = SuccessorTable.from_counts(counts, VOCABULARY, width=3)
    return CombinedTokens([RecentTokens(VOCABULARY, 2), table], VOCABULARY, width)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(IDS, max_size=6), min_size=1, max_size=4), st.integers(1, 12))
def test_tokens_come_once_and_in_the_order_of_the_sources(
    named: list[list[int]], width: int
) -> None:
    sources = [Constant(tokens, (torch.int32, torch.int64)[len(tokens) % 2]) for tokens in named]
    pruned = VOCABULARY.pruned.tolist()
    expected = list(dict.fromkeys(t for tokens in named for t in tokens if t in pruned))
    row = (expected + [-1] * width)[:width]
    chosen = CombinedTokens(sources, VOCABULARY, width)([[1], [], [2, 3]])
    assert chosen.dtype == torch.int32
    assert chosen.tolist() == [row] * 3


def test_successors_fill_what_recent_tokens_leave() -> None:
    combined = recent_and_successors(width=4)
    assert combined([[5, 1], [2, 0], [], [8]]).tolist() == [
        [1, 5, 2, 4],  # two recent ones, then what follows 1
        [2, -1, -1, -1],  # nothing follows 0
        [-1] * 4,
        [8, -1, -1, -1],
    ]
    assert recent_and_successors(width=1)([[5, 1]]).tolist() == [[1]]


def test_padded_tensors_and_sequences_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    padded = torch.randint(-1, SIZE + 1, (60, 5), generator=generator)
    lengths = torch.randint(0, 6, (60,), generator=generator)
    contexts = [row[:n] for row, n in zip(padded.tolist(), lengths.tolist(), strict=True)]
    combined = recent_and_successors(width=4)
    assert torch.equal(combined(padded, lengths), combined(contexts))
    assert torch.equal(combined(padded), combined(padded.tolist()))


def test_a_combination_is_a_source_again() -> None:
    inner = CombinedTokens([Constant([5, 1, 5]), Constant([2])], VOCABULARY, width=4)
    outer = CombinedTokens([Constant([2]), inner], VOCABULARY, width=3)
    assert outer([[7]]).tolist() == [[2, 5, 1]]


def test_nothing_of_a_tensor_is_read_on_the_host() -> None:
    """A fake tensor has no values: reading one, to branch on it or to size an output, raises."""
    combined = recent_and_successors(width=4)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        ids, lengths = torch.zeros(3, 9, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        assert combined(mode.from_tensor(ids), mode.from_tensor(lengths)).shape == (3, 4)


@pytest.mark.parametrize(("count", "width"), [(0, 4), (1, 0)])
def test_no_source_and_no_width_are_refused(count: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{count} sources and width is {width}; both need"):
        CombinedTokens([Constant([1])] * count, VOCABULARY, width)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(2, 3), r"sources\[1\] returned shape \[2, 3\] and dtype torch.float32"),
        (torch.zeros(2).int(), r"returned shape \[2\] .*needs integers \[B, n\] with B = 2"),
        (torch.zeros(3, 3).int(), r"returned shape \[3, 3\] .*with B = 2"),
    ],
)
def test_a_source_that_returns_no_tokens_is_named(returned: torch.Tensor, message: str) -> None:
    combined = CombinedTokens([Constant([1]), lambda contexts: returned], VOCABULARY, width=2)
    with pytest.raises(ValueError, match=message):
        combined([[1], [2]])
