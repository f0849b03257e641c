"""Recent tokens: the distinct pruned ones of the context, newest first, in a fixed width."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rdk_cuda import RecentTokens, Vocabulary, distinct_tokens

SIZE = 12
VOCABULARY = Vocabulary([3, 0, 11, 8], SIZE)


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
def test_it_is_what_one_would_pick_by_hand(width: int, window: int) -> None:
    contexts = ragged_contexts(seed=width)
    chosen = RecentTokens(VOCABULARY, width, window)(contexts)
    assert chosen.dtype == torch.int32
    assert chosen.shape == (30, width)
    assert chosen.tolist() == [by_hand(context, width, window) for context in contexts]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_padded_tensor_gives_the_same_whatever_the_padding(dtype: torch.dtype) -> None:
    contexts = [[i for i in context if abs(i) < 2**31] for context in ragged_contexts(seed=0)]
    lengths = torch.tensor([len(context) for context in contexts], dtype=dtype)
    padded = torch.randint(SIZE, (30, 45), generator=torch.Generator().manual_seed(0)).to(dtype)
    for row, context in zip(padded, contexts, strict=True):
        row[: len(context)] = torch.tensor(context, dtype=dtype)
    recent = RecentTokens(VOCABULARY, width=5, window=9)
    assert torch.equal(recent(padded, lengths), recent(contexts))
    assert torch.equal(recent(padded[:, :6]), recent(padded[:, :6].tolist()))


def test_lengths_beyond_the_tensor_read_nothing_outside_of_it() -> None:
    recent = RecentTokens(VOCABULARY, width=4)
    ids = torch.tensor([[1, 2], [1, 2], [1, 2]])
    chosen = recent(ids, torch.tensor([5, -3, 2**40]))
    assert chosen.tolist() == [[2, 1, -1, -1], [-1] * 4, [2, 1, -1, -1]]


def test_batches_without_sequences_or_tokens_have_no_dynamic_tokens() -> None:
    recent = RecentTokens(VOCABULARY, width=3)
    assert recent([]).shape == recent(torch.zeros(0, 5, dtype=torch.int64)).shape == (0, 3)
    assert recent([[], []]).tolist() == recent(torch.zeros(2, 0).long()).tolist() == 2 * [[-1] * 3]


def test_two_sources_make_one_that_names_no_token_twice() -> None:
    recent = RecentTokens(VOCABULARY, width=4)
    successors = torch.tensor([[5, 9, 6], [1, 3, -1]])
    both = torch.cat([recent([[9, 4], [2]]), successors], dim=1)
    chosen = distinct_tokens(both, recent.allowed, width=5)
    assert chosen.tolist() == [[4, 9, 5, 6, -1], [2, 1, -1, -1, -1]]


def test_nothing_of_a_tensor_is_read_on_the_host() -> None:
    """A fake tensor has no values: reading one, to branch on it or to size an output, raises."""
    recent = RecentTokens(VOCABULARY, width=4)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        ids, lengths = torch.zeros(3, 9, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        assert recent(mode.from_tensor(ids), mode.from_tensor(lengths)).shape == (3, 4)


@pytest.mark.parametrize(
    ("contexts", "lengths", "message"),
    [
        (torch.zeros(3, dtype=torch.int64), None, r"contexts has shape \[3\]"),
        (torch.zeros(3, 2), None, "dtype torch.float32; needs integers"),
        (
            torch.zeros(3, 2).long(),
            torch.zeros(2).long(),
            r"lengths has shape \[2\].* needs",
        ),
        (torch.zeros(3, 2).long(), torch.zeros(3), "lengths has .*float32; needs integers"),
        ([[1], [2]], torch.ones(2).long(), "lengths belong to a padded tensor"),
    ],
)
def test_contexts_that_do_not_fit_are_refused(
    contexts: object, lengths: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RecentTokens(VOCABULARY)(contexts, lengths)  # type: ignore[arg-type]


@pytest.mark.parametrize("arguments", [{"width": 0}, {"window": 0}])
def test_a_width_or_window_of_nothing_is_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"RecentTokens: width is .* at least 1"):
        RecentTokens(VOCABULARY, **arguments)
