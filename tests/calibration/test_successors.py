"""Successor counts and tables are what one would count by hand, and files are checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdk_cuda import (
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.dynamic_tokens import successors

SIZE = 7
VOCABULARY = Vocabulary([4, 0], SIZE)
DOCUMENTS = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=30), max_size=5)


def counted(documents: list[list[int]], size: int = SIZE) -> SuccessorCounts:
    counts = SuccessorCounts(size)
    for document in documents:
        counts.add(document)
    return counts


def as_dict(counts: SuccessorCounts) -> dict[tuple[int, int], float]:
    last, following, weights = (column.tolist() for column in counts.pairs())
    return dict(zip(zip(last, following, strict=True), weights, strict=True))


def by_hand(documents: list[list[int]]) -> dict[tuple[int, int], float]:
    return Counter(pair for document in documents for pair in pairwise(document))


def rows(table: SuccessorTable) -> list[list[int]]:
    ends = table.offsets.tolist()
    return [table.tokens[begin:end].tolist() for begin, end in pairwise(ends)]


# Counts


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(1, 40))
def test_counts_are_those_of_neighbours_within_documents(
    documents: list[list[int]], pending: int
) -> None:
    """Whenever they are merged."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(successors, "_PENDING", pending)
        counts = SuccessorCounts(SIZE)
        for document in documents:
            counts.add(torch.tensor(document, dtype=torch.int32))
            counts.pairs()  # looking at them in between changes nothing
        assert as_dict(counts) == by_hand(documents)
    assert list(as_dict(counts)) == sorted(by_hand(documents))
    assert counts.exact


def test_probabilities_add_up_beside_counts() -> None:
    counts = counted([[1, 2, 1, 2]])
    last, targets = torch.tensor([1, 5, 1]), torch.tensor([[2, 3], [6, 0], [3, 3]])
    probs = torch.tensor([[0.5, 0.25], [0.75, 0.0], [0.125, 0.0625]])
    counts.add_probs(last.int(), targets.int(), probs.half())
    assert as_dict(counts) == {(1, 2): 2.5, (1, 3): 0.4375, (2, 1): 1.0, (5, 6): 0.75}


def zipf_text(length: int, size: int, seed: int) -> Tensor:
    """Each token is the one before plus a small step that is likelier the smaller it is."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1 / torch.arange(1, size + 1).double() ** 1.5
    steps = torch.multinomial(weights, length, replacement=True, generator=generator)
    return steps.cumsum(0) % size


def test_bounded_counts_hold_no_more_and_keep_the_heavy_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(successors, "_PENDING", 2000)
    text, size, bound = zipf_text(40_000, size=50, seed=0), 50, 600
    exact, bounded, again = (SuccessorCounts(size) for _ in range(3))
    for document in text.split(500):
        exact.add(document)
    true = as_dict(exact)
    monkeypatch.setattr(successors, "_MOST_PAIRS", bound)
    for document in text.split(500):
        bounded.add(document)
        again.add(document)
    assert not bounded.exact  # merged on the way, not only when looked at
    held = as_dict(bounded)
    assert len(held) == bound < len(true)
    assert exact.exact
    assert held == as_dict(again)
    assert all(weight <= true[pair] for pair, weight in held.items())
    heavy = {pair: weight for pair, weight in true.items() if weight >= 60}
    assert len(heavy) >= 100
    assert {pair: held.get(pair) for pair in heavy} == heavy


ONE = torch.ones(2, 1)
ADDED: list[tuple[tuple[Any, ...], str]] = [
    (([1, 7],), r"\.add: .*tokens\[1\] is 7; needs a target id in \[0, 7\)"),
    (([1.0, 2.0],), r"\.add: .*dtype torch.float32; needs integers"),
    (([[1, 2]],), r"\.add: .*shape \[1, 2\].*needs integers \[n\]"),
    (([0, 9], [[1], [1]], ONE), r"\.add_probs: .*last_tokens\[1\] is 9"),
    (([0, 1], [[1], [-1]], ONE), r"targets\[1, 0\] is -1"),
    (([0, 1], [1, 1], ONE), r"targets has shape \[2\].*needs integers \[2, m\]"),
    (([0], [[1], [1]], ONE), r"targets has shape \[2, 1\].*needs integers \[1, m\]"),
    (([0, 1], [[1], [1]], ONE[:, 0]), r"probs has shape \[2\]; needs \[2, 1\]"),
    *(
        (([0, 1], [[1], [1]], ONE * value), r"probs\[0, 0\] is .*; needs probabilities")
        for value in (torch.nan, torch.inf, -1)
    ),
]


@pytest.mark.parametrize(("given", "message"), ADDED)
def test_documents_and_probabilities_that_are_none_are_refused_and_not_counted(
    given: tuple[Any, ...], message: str
) -> None:
    counts = SuccessorCounts(SIZE)
    with pytest.raises(ValueError, match=rf"SuccessorCounts.*{message}"):
        counts.add(*given) if len(given) == 1 else counts.add_probs(*map(torch.as_tensor, given))
    assert as_dict(counts) == {}


def test_sizes_that_cannot_be_are_refused() -> None:
    for size in (0, 2**31):
        with pytest.raises(ValueError, match=rf"vocabulary_size is {size}; needs 1 to 2"):
            SuccessorCounts(size)
    counts = counted([[1, 2, 3]])
    for width in (0, 8, 2**40):
        with pytest.raises(ValueError, match=rf"width is {width}; needs 1 to 7"):
            SuccessorTable.from_counts(counts, VOCABULARY, width)
    with pytest.raises(ValueError, match="counts has 9 tokens and vocabulary 7 target tokens"):
        SuccessorTable.from_counts(SuccessorCounts(9), VOCABULARY, width=2)
    with pytest.raises(ValueError, match=r"SuccessorTable: contexts has shape \[3\]"):
        small_table()(torch.zeros(3).long())


# Tables


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(1, SIZE))
def test_rows_are_the_likeliest_pruned_successors_of_equals_the_lowest_ids(
    documents: list[list[int]], width: int
) -> None:
    table = SuccessorTable.from_counts(counted(documents), VOCABULARY, width)
    count = by_hand(documents)
    pruned = VOCABULARY.pruned.tolist()
    for last, row in enumerate(rows(table)):
        seen = [token for token in pruned if (last, token) in count]
        assert row == sorted(seen, key=lambda token: (-count[last, token], token))[:width]
    assert table.width == width


def small_table() -> SuccessorTable:
    """Rows of every length up to the width, the first and the last ones empty."""
    offsets = torch.tensor([0, 0, 3, 4, 6, 6, 6, 6], dtype=torch.int32)
    return SuccessorTable(offsets, torch.tensor([5, 1, 6, 2, 3, 1], dtype=torch.int32), width=3)


def test_a_lookup_is_the_row_of_the_last_token() -> None:
    contexts = [[3], [0, 1], [1, 2], [1, 0], [1, 6], []]
    contexts += [[1, last] for last in (-1, -5, -40, SIZE, 40, 2**40)]
    found = small_table()(contexts)
    assert found.dtype == torch.int32
    assert found.tolist() == [[3, 1, -1], [5, 1, 6], [2, -1, -1], *[[-1] * 3] * 9]


def test_an_id_that_the_target_lacks_has_no_successors_of_the_nearest_one() -> None:
    offsets, tokens = torch.tensor([0, 1, 2], dtype=torch.int32), torch.tensor([1, 0]).int()
    table = SuccessorTable(offsets, tokens, width=1)
    assert table([[0], [1], [-1], [2], []]).tolist() == [[1], [0], [-1], [-1], [-1]]


def test_tables_are_of_tensors() -> None:
    with pytest.raises(TypeError, match=r"SuccessorTable: offsets is \[0, 1\]; needs a tensor"):
        SuccessorTable([0, 1], [0], width=1)  # type: ignore[arg-type]


def test_batches_or_tables_without_anything_have_no_successors() -> None:
    table = small_table()
    assert table([]).shape == table(torch.zeros(0, 5).long()).shape == (0, 3)
    assert table([[], []]).tolist() == table(torch.zeros(2, 0).long()).tolist() == 2 * [[-1] * 3]
    empty = SuccessorTable.from_counts(SuccessorCounts(SIZE), VOCABULARY, width=2)
    assert empty([[1]]).tolist() == empty(torch.tensor([[1]])).tolist() == [[-1, -1]]


# What a table, and so a file of one, must not hold


def replaced(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], None]:
    def tamper(tensors: dict[str, Tensor]) -> None:
        tensors[name] = change(tensors[name]).contiguous()

    return tamper


def at(name: str, place: int, value: int) -> Callable[[dict[str, Tensor]], None]:
    return replaced(name, lambda tensor: tensor.index_fill(0, torch.tensor(place), value))


WRONG = [
    (replaced("offsets", lambda t: t.long()), "offsets has .*int64; needs torch.int32"),
    (replaced("tokens", lambda t: t.float()), "tokens has .*float32; needs torch.int32"),
    (replaced("tokens", lambda t: t[None]), r"tokens has shape \[1, 6\]"),
    (replaced("offsets", lambda t: t[:1]), r"offsets has 1 entries; needs V_t \+ 1 >= 2"),
    (replaced("offsets", lambda t: t[:3]), r"width is 3; needs 1 to 2"),
    (at("offsets", 0, 1), "offsets runs from 1 to 6"),
    (at("offsets", 0, -1), "offsets runs from -1 to 6"),
    (at("offsets", 7, 5), "offsets runs from 0 to 5.* needs to rise from 0 to 6"),
    (at("offsets", 3, 2), "its smallest step is -1; needs to rise"),
    (at("offsets", 3, -(2**31)), "its smallest step is -2147483651; needs to rise"),
    (at("offsets", 2, 4), "length of row.1. is 4; needs at most width = 3"),
    (at("tokens", 4, -1), r"tokens\[4\] is -1; needs a target id in \[0, 7\)"),
    (at("tokens", 0, 7), r"tokens\[0\] is 7"),
    (at("tokens", 2, 5), "row 1 has token 5 twice"),
]


SAID: list[tuple[dict[str, str | None], str]] = [
    ({"format": "other"}, "format 'other'; needs 'rdk_cuda.successors'"),
    ({"format_version": "2"}, "format version '2'; this rdk_cuda reads version 1"),
    ({"width": None}, "says width = ''; needs a number"),
    ({"width": "2"}, "length of row.1. is 3; needs at most width = 2"),
    ({"width": "99999999999"}, "width is 99999999999; needs 1 to 7"),
]


@pytest.mark.parametrize(("tamper", "message"), [*WRONG, *SAID])
def test_wrong_tensors_are_refused_by_the_constructor_and_in_files(
    tamper: Callable[[dict[str, Tensor]], None] | dict[str, str | None],
    message: str,
    tmp_path: Path,
) -> None:
    """Some files say something else than what is in them."""
    tensors = {"offsets": small_table().offsets, "tokens": small_table().tokens}
    if isinstance(tamper, dict):
        save_by_hand(tmp_path / "table", tensors, **tamper)
    else:
        tamper(tensors)
        with pytest.raises(ValueError, match=message):
            SuccessorTable(**tensors, width=3)
        save_by_hand(tmp_path / "table", tensors)
    with pytest.raises(ValueError, match=message) as refused:
        SuccessorTable.load(tmp_path / "table")
    assert str(tmp_path / "table") in str(refused.value)


# Files


def save_by_hand(path: Path, tensors: dict[str, Tensor], **said: str | None) -> None:
    metadata = {
        "format": "rdk_cuda.successors",
        "format_version": "1",
        "target_size": str(tensors["offsets"].numel() - 1),
        "successors": str(tensors["tokens"].numel()),
        "width": "3",
        **said,
    }
    known = {name: value for name, value in metadata.items() if value is not None}
    safetensors.torch.save_file(tensors, path, known)


def assert_same(table: SuccessorTable, other: SuccessorTable) -> None:
    assert torch.equal(table.offsets, other.offsets)
    assert torch.equal(table.tokens, other.tokens)
    assert table.width == other.width


@pytest.mark.parametrize("documents", [[], [[1, 2, 1, 3, 6, 5]]])
def test_a_file_gives_back_the_same_table(documents: list[list[int]], tmp_path: Path) -> None:
    table = SuccessorTable.from_counts(counted(documents), VOCABULARY, width=4)
    table.save(tmp_path / "table")
    assert_same(SuccessorTable.load(str(tmp_path / "table")), table)
    assert SuccessorTable.load(tmp_path / "table", device="meta").tokens.device.type == "meta"
    assert [file.name for file in tmp_path.iterdir()] == ["table"]
    save_by_hand(tmp_path / "table", {"offsets": table.offsets, "tokens": table.tokens}, width="4")
    assert_same(SuccessorTable.load(tmp_path / "table"), table)
