"""Recordings come back from files to the bit, and damaged files are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rdk_cuda.calibration.recording import Recording, RecordingError

from .bigram_recordings import V_T, assert_same_bits, recorded

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_saved_recording_comes_back_to_the_bit(tmp_path: Path) -> None:
    recording = recorded(samples=20, likeliest=7)
    recording.save(tmp_path / "recording.safetensors")
    assert_same_bits(Recording.load(tmp_path / "recording.safetensors"), recording)
    assert os.listdir(tmp_path) == ["recording.safetensors"]


def _altered(path: Path, **changes: object) -> None:
    """The file, with tensors changed by functions or dropped, and `about` or header entries."""
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    for name, change in changes.items():
        if change is None:
            del tensors[name]
        elif callable(change):
            tensors[name] = change(tensors.get(name))
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
BAD_FILES = [
    ({"format": "other"}, "format 'other'; needs 'rdk_cuda.recording"),
    ({"format_version": "2"}, "format version '2'; this rdk_cuda reads version 1"),
    ({"hidden": None}, r"lacks \['hidden'\] and has unknown \[\]"),
    ({"more": lambda _: torch.ones(1)}, r"lacks \[\] and has unknown \['more'\]"),
    ({"temperatures": [1.0, 0.0]}, "does not tell at which temperatures"),
    ({"temperatures": 1.0}, "does not tell at which temperatures"),
    ({"more": NESTED}, "is nested more than 100 times"),
    ({"hidden": lambda x: x.double()}, "hidden is torch.float64"),
    ({"hidden": lambda x: x[1:].clone()}, r"has shape \[(19|20).*as the rest of the file"),
    ({"targets": lambda x: x[:, 1:].clone()}, "as the rest of the file"),
    ({"hidden": _with(torch.nan)}, "hidden has the value nan"),
    ({"target_logits": _with(torch.inf)}, "target_logits has the value inf"),
    ({"log_normalizers": _with(-torch.inf)}, "log_normalizers has the value -inf"),
    ({"targets": _with(V_T)}, f"targets has the value {V_T}; needs values in \\[0, {V_T - 1}\\]"),
    ({"contexts": _with(-2)}, "contexts has the value -2"),
    ({"counts": _with(-1)}, "counts has the value -1"),
]
BAD_RECORDINGS = [
    ({"temperatures": [1.0]}, r"mean_probs has shape \[2, 40\]; needs \[1, V_t\]"),
    ({"mean_probs": lambda x: x * 2}, "mean_probs sum to"),
    ({"mean_probs": _with(-0.1)}, "mean_probs has the value -0.1"),
    ({"hidden_second_moment": _with(torch.nan)}, "hidden_second_moment has the value nan"),
    ({"mean_squares": lambda x: x[:, 1:].clone()}, "as the rest of the file"),
]
BAD_STATES = [
    ({"windows_read": 14}, "14 windows far"),
    ({"windows_read": 12}, "counts do not sum"),
    ({"positions": _with(95)}, "positions are not"),
    ({"positions": _with(0)}, "positions are not|keys are not"),
    ({"keys": _with(5)}, "keys are not"),
    ({"probs": _with(torch.nan)}, "probs has the value nan"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_FILES + BAD_RECORDINGS)
def test_a_bad_recording_is_refused(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "recording"
    recorded(samples=20).save(path)
    _altered(path, **changes)
    with pytest.raises(RecordingError, match=sentence) as info:
        Recording.load(path)
    assert str(path) in str(info.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [row for row in BAD_FILES if "temperatures" not in row[0]] + BAD_STATES,
)
def test_a_bad_state_is_refused(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    path = tmp_path / "state"
    recorded(samples=20, state=path)
    _altered(path, **changes)
    with pytest.raises(RecordingError, match=sentence) as info:
        recorded(samples=20, state=path)
    assert str(path) in str(info.value)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
def test_a_file_that_was_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "recording"
    recorded(samples=20, state=path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(RecordingError, match="not a complete safetensors file"):
        recorded(samples=20, state=path)
    with pytest.raises(RecordingError, match="not a complete safetensors file"):
        Recording.load(path)


def test_a_state_is_no_recording_and_the_other_way_round(tmp_path: Path) -> None:
    path = tmp_path / "file"
    recording = recorded(state=path)
    with pytest.raises(RecordingError, match=r"format 'rdk_cuda.recording_state'"):
        Recording.load(path)
    recording.save(path)
    with pytest.raises(RecordingError, match=r"format 'rdk_cuda.recording'"):
        recorded(state=path)
    with pytest.raises(FileNotFoundError):
        Recording.load(tmp_path / "absent")
