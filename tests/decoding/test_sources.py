"""Sources of dynamic tokens: recent tokens, and several sources as one."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from rdk_cuda import (
    CombinedTokens,
    RecentTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
    distinct_tokens,
)
from rdk_cuda.dynamic_tokens import Contexts

SIZE = 12
VOCABULARY = Vocabulary([3, 0, 11, 8], SIZE)
IDS = st.integers(-1, SIZE)


class Constant:
    """Names the same tokens whatever the context."""

    def __init__(self, tokens: list[int], dtype: torch.dtype = torch.int64) -> None:
        self.tokens = torch.tensor(tokens, dtype=dtype)

    def __call__(self, contexts: Contexts) -> Tensor:
        return self.tokens.expand(len(contexts), -1)


def recent_and_successors(width: int = 4) -> CombinedTokens:
    counts = SuccessorCounts(SIZE)
    counts.add([1, 2, 1, 4, 1, 2, 5, 2, 6, 6, 7, 9])
    table = SuccessorTable.from_counts(counts, VOCABULARY, width=3)
    return CombinedTokens([RecentTokens(VOCABULARY, 2), table], VOCABULARY, width)


SOURCES: list[Callable[..., Tensor]] = [
    RecentTokens(VOCABULARY, width=5, window=9),
    recent_and_successors(),
]


def by_hand(context: list[int], width: int, window: int) -> list[int]:
    found: list[int] = []
    for token in reversed(context[-window:]):
        if 0 <= token < SIZE and token not in (3, 0, 11, 8) and token not in found:
            found.append(token)
    return (found + [-1] * width)[:width]


def ragged_contexts(seed: int) -> list[list[int]]:
    """Some empty, some longer than any window, with ids that are no tokens."""
    rng = random.Random(seed)
    ids = [*range(SIZE), -1, SIZE, 2**40, -(2**40)]
    return [[rng.choice(ids) for _ in range(rng.choice([0, 1, 5, 40]))] for _ in range(30)]


@pytest.mark.parametrize(("width", "window"), [(1, 1), (2, 40), (8, 7), (20, 100)])
def test_recent_tokens_are_what_one_would_pick_by_hand(width: int, window: int) -> None:
    contexts = ragged_contexts(seed=width)
    chosen = RecentTokens(VOCABULARY, width, window)(contexts)
    assert chosen.dtype == torch.int32
    assert chosen.shape == (30, width)
    assert chosen.tolist() == [by_hand(context, width, window) for context in contexts]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(IDS, max_size=6), min_size=1, max_size=4), st.integers(1, 12))
def test_combined_tokens_come_once_and_in_the_order_of_the_sources(
    named: list[list[int]], width: int
) -> None:
    sources = [Constant(tokens, (torch.int32, torch.int64)[len(tokens) % 2]) for tokens in named]
    pruned = VOCABULARY.pruned.tolist()
    expected = list(dict.fromkeys(t for tokens in named for t in tokens if t in pruned))
    row = (expected + [-1] * width)[:width]
    combined = CombinedTokens(sources, VOCABULARY, width)
    assert combined([[1], [], [2, 3]]).dtype == torch.int32
    assert combined([[1], [], [2, 3]]).tolist() == [row] * 3
    again = CombinedTokens([Constant([2]), combined], VOCABULARY, width)  # is a source itself
    first_two = (list(dict.fromkeys([2, *expected[:width]])) + [-1] * width)[:width]
    assert again([[7]]).tolist() == [first_two]


def test_successors_fill_what_recent_tokens_leave() -> None:
    assert recent_and_successors()([[5, 1], [2, 0], [], [9]]).tolist() == [
        [1, 5, 2, 4],  # two recent ones, then what follows 1
        [2, -1, -1, -1],  # nothing follows 0
        [-1] * 4,
        [9, -1, -1, -1],
    ]
    assert recent_and_successors(width=1)([[5, 1]]).tolist() == [[1]]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("source", SOURCES)
def test_a_padded_tensor_gives_what_its_sequences_do(
    source: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    contexts = [[i for i in context if abs(i) < 2**31] for context in ragged_contexts(seed=0)]
    longest = max(map(len, contexts))
    padded = torch.tensor([[-1] * (longest - len(ids)) + ids for ids in contexts], dtype=dtype)
    assert torch.equal(source(padded), source(contexts))
    assert torch.equal(source(padded[:, -6:]), source(padded[:, -6:].tolist()))


def test_batches_without_sequences_or_tokens_have_no_dynamic_tokens() -> None:
    recent = RecentTokens(VOCABULARY, width=3)
    assert recent([]).shape == recent(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 3)
    assert recent([[], []]).tolist() == recent(torch.zeros(2, 0).long()).tolist() == 2 * [[-1] * 3]


def test_two_tensors_of_tokens_make_one_that_names_no_token_twice() -> None:
    recent = RecentTokens(VOCABULARY, width=4)
    both = torch.cat([recent([[9, 4], [2]]), torch.tensor([[5, 9, 6], [1, 3, -1]])], dim=1)
    chosen = distinct_tokens(both, recent.allowed, width=5)
    assert chosen.tolist() == [[4, 9, 5, 6, -1], [2, 1, -1, -1, -1]]


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_of_a_tensor_is_read_on_the_host(source: Callable[..., Tensor]) -> None:
    """A fake tensor has no values: reading one, to branch on it or to size an output, raises."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        ids = mode.from_tensor(torch.zeros(3, 9, dtype=torch.int64))
        assert source(ids).shape[0] == 3


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_one_call_of_an_operator_also_in_a_compiled_graph(
    source: Callable[..., Tensor],
) -> None:
    ids = torch.randint(SIZE, (3, 9), generator=torch.Generator().manual_seed(5))
    called = [n.target for n in make_fx(source)(ids).graph.nodes if n.op == "call_function"]
    assert called == [torch.ops.rdk.name_tokens.default]
    compiled = torch.compile(source, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(ids), source(ids))


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), r"contexts has shape \[3\]"),
        (torch.zeros(3, 2), "dtype torch.float32; needs torch.int32, torch.int64"),
        (torch.zeros(3, 2).to(torch.uint8), "dtype torch.uint8; needs torch.int32, torch.int64"),
        (torch.zeros(3, 2).to(torch.int16), "dtype torch.int16; needs torch.int32, torch.int64"),
    ],
)
def test_contexts_that_do_not_fit_are_refused(contexts: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RecentTokens(VOCABULARY)(contexts)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RecentTokens(VOCABULARY, width=0), "RecentTokens: width is 0; needs at least 1"),
        (lambda: RecentTokens(VOCABULARY, window=0), "window is 0; needs at least 1"),
        (lambda: CombinedTokens([], VOCABULARY, 4), "number of sources is 0; needs at least 1"),
        (
            lambda: CombinedTokens(SOURCES, VOCABULARY, 0),
            "CombinedTokens: width is 0; needs",
        ),
    ],
)
def test_no_source_no_width_and_no_window_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (torch.zeros(2, 3), r"sources\[1\] has shape \[2, 3\] and dtype torch.float32"),
        (torch.zeros(2).int(), r"has shape \[2\] .*needs torch.int32, torch.int64 \[2, n\]"),
        (torch.zeros(2, 3).to(torch.uint8), "dtype torch.uint8; needs torch.int32, torch.int64"),
        (torch.zeros(3, 3).int(), r"has shape \[3, 3\] .*torch.int64 \[2, n\]"),
    ],
)
def test_a_source_that_returns_no_tokens_is_named(returned: torch.Tensor, message: str) -> None:
    combined = CombinedTokens([Constant([1]), lambda contexts: returned], VOCABULARY, width=2)
    with pytest.raises(ValueError, match=message):
        combined([[1], [2]])
