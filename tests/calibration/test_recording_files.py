"""Damaged recordings are refused, with what to delete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rdk_cuda.recipes.resume import RecordingPlace
from rdk_cuda.recipes.shards import SUMS, RecordingError

from .bigram_recordings import recorded


def _altered(path: Path, **changes: object) -> None:
    """The file, with tensors changed by functions or dropped, and `about` or header entries."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        elif callable(change):
            tensors[name] = change(tensors[name])
        elif name in ("format", "format_version"):
            metadata[name] = change
        else:
            metadata["about"] = json.dumps(json.loads(metadata["about"]) | {name: change})
    safetensors.torch.save_file(tensors, path, metadata)


def _with(value: float):
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[3] = value
        return tensor

    return change


NESTED = json.loads("[" * 200 + "]" * 200)
SAMPLES = "samples-00000.safetensors"


@pytest.mark.parametrize(
    ("file", "changes", "sentence"),
    [
        (SUMS, {"format": "other"}, "format 'other'; needs 'rdk_cuda.recording'"),
        (SUMS, {"format_version": "1"}, "format version '1'; this rdk_cuda reads version 3"),
        (SUMS, {"probs": None}, r"lacks \['probs'\] and has unknown \[\]"),
        (SUMS, {"temperatures": [1.0, 0.0]}, "does not tell at which temperatures"),
        (SUMS, {"more": NESTED}, "is nested more than 100 times"),
        *((SUMS, {"read": ends}, "was altered") for ends in (1, [99], [3, 3], [-1], ["3"])),
        (SAMPLES, {"seed": 4}, "is of another recording, or of other windows"),
        (SAMPLES, {"windows": [0, 1]}, "is of another recording, or of other windows"),
        (SUMS, {"probs": lambda x: x[:, 1:].clone()}, "probs is .*39.; needs .*40."),
        (SUMS, {"probs": _with(-0.1)}, "probs has the value -0.1"),
        (SUMS, {"counts": _with(-1)}, "counts has the value -1"),
        (SUMS, {"moment": _with(torch.nan)}, "moment has the value nan"),
        (SAMPLES, {"hidden": None}, r"lacks \['hidden'\]"),
        (SAMPLES, {"logits": None}, "logits is None"),
        (SAMPLES, {"hidden": lambda x: x.double()}, "hidden is torch.float64"),
        (SAMPLES, {"hidden": lambda x: x[1:].clone()}, "hidden is .*; the file was altered"),
        (SAMPLES, {"hidden": _with(torch.nan)}, "hidden has the value nan"),
        (SAMPLES, {"logits": _with(torch.inf)}, "logits has the value inf"),
        (SAMPLES, {"log_normalizers": _with(-torch.inf)}, "log_normalizers has the value -inf"),
        *((file, share, "not a complete s") for file in (SUMS, SAMPLES) for share in (0.0, 0.999)),
    ],
)
def test_a_bad_state_is_refused(
    tmp_path: Path, file: str, changes: dict[str, object] | float, sentence: str
) -> None:
    """Some are cut to a share of their length."""
    path = tmp_path / "state"
    recorded(samples=20, state=path)
    if isinstance(changes, float):
        content = (path / file).read_bytes()
        (path / file).write_bytes(content[: int(len(content) * changes)])
    else:
        _altered(path / file, **changes)
    with pytest.raises(RecordingError, match=f"{sentence}.*delete it to begin anew") as info:
        recorded(samples=20, state=path)
    assert str(path) in str(info.value)


def test_ids_of_likeliest_tokens_are_checked_where_they_are_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they take less than all logits."""
    monkeypatch.setattr("rdk_cuda.recipes.record._MOST_LIKELIEST", 7)
    path = tmp_path / "state"
    whole = recorded(samples=20, state=path)
    assert torch.equal(recorded(samples=20, state=path).samples.targets, whole.samples.targets)
    _altered(path / SAMPLES, targets=_with(40))
    with pytest.raises(RecordingError, match="targets has the value 40"):
        recorded(samples=20, state=path)


def test_it_takes_four_bytes_for_each_logit_and_a_full_disk_is_found_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    recording = recorded(samples=90, state=path)
    sizes = [file.stat().st_size for file in path.glob("samples-*")]
    assert sum(sizes) < 90 * 4 * (40 + 3 + 2) + 700 * len(sizes)  # with headers
    assert len(recording.samples) == 90
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("", (), {"free": 9}))
    with pytest.raises(OSError, match="No space left on device: needs"):
        recorded(samples=90, state=tmp_path / "other")
    assert [file.name for file in tmp_path.iterdir()] == ["state"]


def test_a_recording_behind_a_link_is_removed_with_it(tmp_path: Path) -> None:
    """Somebody may keep it on another disk."""
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "out.recording.tmp"
    link.symlink_to("elsewhere")
    recorded(samples=20, state=link)
    assert "removed" in RecordingPlace(link, False, (1.0,)).close()
    assert not list(tmp_path.iterdir())
