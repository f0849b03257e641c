"""Damaged files of recordings are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from rdk_cuda.calibration.recording_file import RecordingError, recorded_temperatures

from .bigram_recordings import V_T, recorded

pytestmark = pytest.mark.usefixtures("one_thread")


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
    ({"format": "other"}, "format 'other'; needs 'rdk_cuda.recording_state"),
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
    ({"temperatures": [1.0]}, r"probs has shape \[2, 40\]; needs \[1, V_t\]"),
    ({"squares": lambda x: x[:, 1:].clone()}, "as the rest of the file"),
    ({"squares": _with(-0.1)}, "squares has the value -0.1"),
    ({"moment": _with(torch.nan)}, "moment has the value nan"),
    ({"windows_read": 14}, "14 windows far"),
    ({"windows_read": 12}, "counts do not sum"),
    ({"positions": _with(95)}, "positions are not"),
    ({"positions": _with(0)}, "positions are not|keys are not"),
    ({"keys": _with(5)}, "keys are not"),
    ({"probs": _with(torch.nan)}, "probs has the value nan"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_FILES)
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
        recorded_temperatures(path)
