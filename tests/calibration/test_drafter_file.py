"""`PrunedDrafter.save` and `load`: the same drafter again, or an error that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rdk_cuda import (
    Affinity,
    CombinedTokens,
    RecentTokens,
    ScreenedTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.drafter import LiftedRows, PrunedDrafter, SavedDrafterError
from rdk_cuda.dynamic_tokens import dynamic_columns

safe_open = pytest.importorskip("safetensors").safe_open
safetensors_torch = pytest.importorskip("safetensors.torch")

SIZE, WIDTH = 12, 3
VOCABULARY = Vocabulary([7, 0, 4], SIZE)
LIFTED = LiftedRows(
    torch.linspace(-1, 2, (WIDTH + 2) * WIDTH).sin().view(WIDTH + 2, WIDTH),
    torch.linspace(-3, 0, SIZE),
    torch.tensor([-2.0, 0.5]),
)
CONTEXTS = [[3, 5, 0], [8, 7, 3], [], [4, 9, 1, 2]]


def successors() -> SuccessorTable:
    counts = SuccessorCounts(SIZE)
    counts.add([0, 1, 0, 2, 3, 5, 3, 6, 2, 9, 2, 10])
    return SuccessorTable.from_counts(counts, VOCABULARY, width=2)


def screen(vocabulary: Vocabulary = VOCABULARY, width: int = WIDTH, **more: Any) -> ScreenedTokens:
    pruned = vocabulary.pruned.numel()
    left = torch.linspace(-1, 2, 2 * pruned).sin().view(pruned, 2)
    right = torch.linspace(0, 3, 2 * width).cos().view(2, width)
    return ScreenedTokens.from_factors(
        vocabulary, left, right, **{"bias": left[:, 0], "width": 2, **more}
    )


def drafter(**changes: Any) -> PrunedDrafter:
    """Three kept tokens, not ascending, and two virtual ones; recent tokens and successors."""
    clusters = torch.full((SIZE,), -1)
    clusters[VOCABULARY.pruned] = torch.arange(9) % 2
    sources = [RecentTokens(VOCABULARY, 2, window=3), successors()]
    whole = PrunedDrafter(
        VOCABULARY,
        Affinity.virtual_tokens(VOCABULARY, clusters, torch.arange(1.0, SIZE + 1)),
        torch.linspace(-1, 1, 15).view(5, WIDTH),
        torch.linspace(-2, 2, 5),
        CombinedTokens(sources, VOCABULARY, width=4),
    )
    return replace(whole, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weight": torch.ones(5, WIDTH, dtype=torch.bfloat16), "bias": None},
        {"dynamic_tokens": None},
        {"dynamic_tokens": RecentTokens(VOCABULARY, width=3, window=2)},
        {"dynamic_tokens": successors()},
        {"dynamic_tokens": screen()},
        {"dynamic_tokens": screen(bias=None)},
        {"dynamic_tokens": CombinedTokens([successors(), screen()], VOCABULARY, width=4)},
        {"lifted": LIFTED},
    ],
)
def test_a_loaded_drafter_is_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    saved = drafter(**changes)
    saved.save(tmp_path / "file")
    loaded = PrunedDrafter.load(str(tmp_path / "file"))
    assert loaded.vocabulary == saved.vocabulary
    assert loaded.weight.dtype == saved.weight.dtype
    assert torch.equal(loaded.weight, saved.weight)
    assert torch.equal(loaded.affinity.dense(), saved.affinity.dense())
    assert torch.equal(loaded.affinity.bias, saved.affinity.bias)
    assert (loaded.bias is None) == (saved.bias is None)
    assert loaded.bias is None or torch.equal(loaded.bias, saved.bias)  # type: ignore[arg-type]
    assert (loaded.dynamic_tokens is None) == (saved.dynamic_tokens is None)
    if loaded.dynamic_tokens is not None and saved.dynamic_tokens is not None:
        hidden = torch.linspace(-2, 3, 4 * WIDTH).view(4, WIDTH)
        head = torch.linspace(-1, 1, SIZE * WIDTH).view(SIZE, WIDTH), None
        again, before = (
            dynamic_columns(source, head, CONTEXTS, hidden)
            for source in (loaded.dynamic_tokens, saved.dynamic_tokens)
        )
        assert all(map(torch.equal, again, before))
        assert loaded.screen_bytes == saved.screen_bytes
    assert (loaded.lifted is None) == (saved.lifted is None)
    if loaded.lifted is not None:
        for name, part in vars(saved.lifted).items():
            found = getattr(loaded.lifted, name)
            assert torch.equal(found, part) if torch.is_tensor(part) else found == part, name
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "file").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "file"]


ELSEWHERE = Vocabulary([1, 2, 3], SIZE)
DISAGREEING: list[tuple[dict[str, Any], str]] = [
    ({"weight": torch.ones(4, WIDTH)}, r"weight has shape \[4, 3\] and dtype torch.float32; needs"),
    ({"weight": torch.ones(5, WIDTH).int()}, "dtype torch.int32"),
    ({"weight": torch.full((5, WIDTH), torch.nan)}, "the head is not finite"),
    ({"bias": torch.zeros(3)}, r"bias has shape \[3\].* \[5\]"),
    ({"vocabulary": Vocabulary([0], SIZE + 1)}, "are 1 of 13, but the affinity maps 5"),
    ({"vocabulary": Vocabulary(range(6), SIZE)}, "are 6 of 12"),
    ({"dynamic_tokens": lambda contexts: None}, "has a source function; a file can hold Recent"),
    ({"dynamic_tokens": RecentTokens(ELSEWHERE)}, "RecentTokens of another vocabulary"),
    (
        {"dynamic_tokens": CombinedTokens([successors(), successors()], VOCABULARY)},
        "two tables or two screens",
    ),
    ({"dynamic_tokens": screen(ELSEWHERE)}, "ScreenedTokens of another vocabulary"),
    ({"dynamic_tokens": screen(width=4)}, "a screen is of width 4; needs that of the head, 3"),
    *(
        ({"lifted": bad}, "of the lifted rows")
        for bad in (
            replace(LIFTED, map=LIFTED.map[:, 1:]),
            replace(LIFTED, log_prior=LIFTED.log_prior[1:]),
            replace(LIFTED, map=LIFTED.map * torch.nan),
            replace(LIFTED, map=LIFTED.map.double()),
            replace(LIFTED, shift=torch.zeros(3)),
        )
    ),
]


@pytest.mark.parametrize(("changes", "message"), DISAGREEING)
def test_parts_that_disagree_are_not_saved(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SavedDrafterError, match=f"^PrunedDrafter.save: .*{message}") as refusal:
        drafter(**changes).save(tmp_path / "file")
    assert "PrunedDrafter" not in refusal.value.reason
    assert not list(tmp_path.iterdir())


def rewritten(file: Path, drop: str = "", **changes: Any) -> None:
    """The file with other tensors or, where the change is text, other metadata."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as content:
        metadata = content.metadata()
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    for name, change in changes.items():
        name = name.replace("__", ".")
        target = metadata if isinstance(change, str) else tensors
        target[name] = change
    tensors.pop(drop, None)
    safetensors_torch.save_file(tensors, file, metadata)


def source(**changes: Any) -> dict[str, str]:
    return {"dynamic_tokens": json.dumps({"kind": "recent", "width": 2, "window": 3} | changes)}


def combined(**changes: Any) -> dict[str, str]:
    return {"dynamic_tokens": json.dumps({"kind": "combined", "width": 2} | changes)}


SCREEN = {
    f"screen__{name}": getattr(screen(), name).contiguous()
    for name in ("tokens", "left", "scale", "bias", "right")
}


def said(**more: int) -> str:
    return json.dumps({"kind": "screened", "width": 2, **more})


SCREENED = {**SCREEN, "dynamic_tokens": said()}

DAMAGES: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "of format 'other'; needs 'rdk_cuda.pruned_drafter'"),
    ({"format_version": "9"}, "has format version '9'; this rdk_cuda reads version 1"),
    ({"drop": "kept"}, r"lacks \['kept'\]"),
    ({"drop": "affinity.bias"}, r"lacks \['affinity.bias'\]"),
    ({"more": torch.ones(1)}, r"unknown \['more'\]"),
    ({"kept": torch.tensor([0, 0])}, "are both 0"),
    ({"kept": torch.tensor([SIZE])}, r"draft_ids\[0\] is 12"),
    ({"weight": torch.ones(4, WIDTH)}, r"shape \[4, 3\]"),
    ({"weight": torch.full((5, WIDTH), torch.inf)}, "not finite"),
    ({"bias": torch.ones(4)}, r"bias has shape \[4\]"),
    ({"affinity__row_targets": torch.full((12,), SIZE).int()}, "row_targets"),
    ({"affinity__prior_cdf": torch.zeros(0, 1 << 30).long()}, "V_t is 1073741824; needs at most"),
    ({"successors__tokens": torch.full((9,), SIZE).int()}, "SuccessorTable: "),
    (
        {"successors__offsets": torch.zeros(3).int(), "successors__tokens": torch.zeros(0).int()},
        "table of successors is for 2 tokens",
    ),
    ({"bias": torch.ones(5, dtype=torch.bfloat16)}, "bias .* torch.bfloat16; needs torch.float32"),
    ({"drop": "successors.tokens"}, r": lacks 'successors\.tokens'"),
    ({"lifted__shift": torch.ones(2)}, r": lacks 'lifted\.map'"),
    (SCREENED | {"screen__tokens": SCREEN["screen__tokens"] + 1}, "other tokens than the drafter"),
    (SCREENED | {"screen__scale": SCREEN["screen__scale"] * torch.nan}, r"scale\[0\] is nan"),
    (SCREENED | {"screen__left": torch.zeros(9, 3).char()}, r"left has shape \[9, 3\]"),
    (SCREENED | {"screen__right": torch.zeros(2, 5)}, "of width 5; needs that of the head, 3"),
    (SCREENED | {"drop": "screen.scale"}, r": lacks 'screen\.scale'"),
    (SCREENED | {"dynamic_tokens": said(width=10)}, "width is 10"),
    ({"dynamic_tokens": "{"}, "Expecting"),
    ({"dynamic_tokens": "[" * 999}, "nested more than 100|Expecting"),
    ({"dynamic_tokens": " " * 2000}, "takes 2000 characters"),
    ({"dynamic_tokens": "[]"}, "list indices"),
    ({"dynamic_tokens": '"many"'}, "string indices"),
    (source(width=-1), "width is -1; needs 1 to 12"),
    (source(width=True), "width is True; needs"),
    (source(window="3"), "window is '3'; needs"),
    (source(kind="magic"), "the kind 'magic', which this rdk_cuda does not know"),
    (source(bonus=2.0), "of kind recent has 'bonus', which this rdk_cuda does not know; calibrate"),
    (SCREENED | {"dynamic_tokens": said(candidates=4)}, "of kind screened has 'candidates', which"),
    (combined(), ": lacks 'sources'"),
    (combined(sources=[]), "number of sources is 0"),
    (combined(sources=3), "not iterable"),
]


@pytest.mark.parametrize(("changes", "message"), DAMAGES)
def test_a_damaged_file_is_refused_by_its_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = tmp_path / "file"
    drafter().save(file)
    rewritten(file, **changes)
    with pytest.raises(SavedDrafterError, match=message) as refusal:
        PrunedDrafter.load(file)
    assert refusal.value.reason.startswith(str(file))


ODD = (torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint16, torch.uint64, torch.complex64)


@pytest.mark.parametrize("dtype", [*ODD, torch.bool, torch.float64], ids=str)
def test_a_tensor_of_another_dtype_is_refused_by_the_file_s_name(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    file = tmp_path / "file"
    both = CombinedTokens([successors(), screen()], VOCABULARY, width=4)
    lifted = LiftedRows(torch.ones(WIDTH + 2, WIDTH), torch.zeros(SIZE))
    drafter(dynamic_tokens=both, lifted=lifted).save(file)
    whole = file.read_bytes()
    with safe_open(file, framework="pt") as content:
        shapes = {name: content.get_slice(name).get_shape() for name in content.keys()}  # noqa: SIM118
    assert len(shapes) == 19
    for name, shape in shapes.items():
        for changed in (torch.zeros(shape), torch.zeros(())):
            file.write_bytes(whole)
            rewritten(file, **{name: changed.to(dtype)})
            with pytest.raises(SavedDrafterError) as refusal:
                PrunedDrafter.load(file)
            assert refusal.value.reason.startswith(str(file)), name


def test_a_file_that_is_cut_off_or_missing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    drafter().save(file)
    for size in (len(file.read_bytes()) - 8, 100, 0):
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(SavedDrafterError, match="file is not a complete safetensors file"):
            PrunedDrafter.load(file)
    with pytest.raises(FileNotFoundError):
        PrunedDrafter.load(tmp_path / "missing")
