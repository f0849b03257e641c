"""A pipe, a device or a directory in a file's place is refused; a link to a file is read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rdk_cuda import Affinity, AffinityError, Vocabulary
from rdk_cuda.calibration import RecordingError
from rdk_cuda.drafter import PrunedDrafter, SavedDrafterError
from rdk_cuda.files import json_of, read_small
from rdk_cuda.integrations.eagle3 import CheckpointError, is_checkpoint, read_checkpoint
from rdk_cuda.integrations.eagle3.weights import read_tensors, tensor_names
from rdk_cuda.integrations.huggingface.saved_drafter import PRUNED, SETTINGS, load_pruned
from rdk_cuda.integrations.huggingface.text_drafter import load_affinity
from rdk_cuda.integrations.token_maps import read_token_map
from rdk_cuda.recipes.errors import InputError
from rdk_cuda.recipes.inputs.loading import load_model
from rdk_cuda.recipes.shards import SUMS, recorded_temperatures

from ..bounded_memory import memory_for

ERRORS = (OSError, AffinityError, CheckpointError, RecordingError)


def of_a_checkpoint(path: Path) -> None:
    (path.parent / "config.json").symlink_to(path)
    assert not is_checkpoint(path.parent)
    read_checkpoint(path.parent, None)


def of_a_saved_drafter(path: Path) -> None:
    (path.parent / "drafter").mkdir()
    (path.parent / PRUNED).touch()
    (path.parent / SETTINGS).symlink_to(path)
    load_pruned(path.parent)


def of_a_recording(path: Path) -> None:
    """The file as one of a recording's."""
    folder = path.parent / "recording"
    folder.mkdir()
    (folder / SUMS).symlink_to(path)
    recorded_temperatures(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "token map": lambda path: read_token_map(path, 41),
    "config.json": of_a_checkpoint,
    "calibration.json": of_a_saved_drafter,
    "affinity": Affinity.load,
    "pruned drafter": PrunedDrafter.load,
    "recording": of_a_recording,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, read: Callable[[Path], Any], kind: str
) -> None:
    path = tmp_path / "it"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with memory_for(1 << 28), pytest.raises(ERRORS, match=r"(?i)not a regular file") as refused:
        read(path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (Affinity.load, AffinityError),
        (PrunedDrafter.load, SavedDrafterError),
        (of_a_recording, RecordingError),
    ],
)
def test_a_directory_in_a_file_s_place_is_named(
    tmp_path: Path, read: Callable[[Path], Any], error: type[ValueError]
) -> None:
    (tmp_path / "it").mkdir()
    with pytest.raises(error, match=r"\.load: .* is a directory; needs a file that .*\.save wrote"):
        read(tmp_path / "it")


def test_control_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("[3, 1]")
    (tmp_path / "link").symlink_to("ids")
    assert read_token_map(tmp_path / "link", 41).draft_ids.tolist() == [3, 1]
    save_file({"d2t": torch.tensor([3, 5])}, tmp_path / "blob")
    (tmp_path / "d2t").symlink_to("blob")
    kept = read_token_map(tmp_path / "d2t", 41, stored="absolute").draft_ids
    assert kept.tolist() == [3, 5]
    affinity = Affinity.intersection(Vocabulary([3, 1], 41))
    affinity.save(tmp_path / "affinity")
    (tmp_path / "other").symlink_to("affinity")
    assert Affinity.load(tmp_path / "other").draft_size == 2


def test_more_json_than_is_said_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no place on the disk
    with memory_for(1 << 28):
        with pytest.raises(ValueError, match="has 1099511627776 bytes; needs at most 16777216"):
            read_small(path)
        with pytest.raises(CheckpointError, match=r"config\.json.*1099511627776 bytes"):
            read_checkpoint(tmp_path, None)


TENSOR_READERS = {name: read for name, read in READERS.items() if ".json" not in name} | {
    "text drafter": lambda path: load_affinity(path.parent),
    "checkpoint's names": lambda path: tensor_names(path.parent),
    "checkpoint": lambda path: read_tensors(path.parent),
    "model": lambda path: load_model("--drafter", path.parent),
}


@pytest.mark.parametrize("read", TENSOR_READERS.values(), ids=TENSOR_READERS.keys())
@pytest.mark.parametrize("kind", ["more than it says", "as large as it says", "nothing"])
def test_no_terabyte_is_mapped(tmp_path: Path, read: Callable[[Path], Any], kind: str) -> None:
    """A hole takes no place on the disk."""
    path, size = tmp_path / "model.safetensors", 1 << 40
    (tmp_path / "affinity.safetensors").symlink_to(path.name)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    said = size if kind == "as large as it says" else 4
    entry = {"dtype": "F32", "shape": [said // 4], "data_offsets": [0, said]}
    header = b"" if kind == "nothing" else json.dumps({"d2t": entry}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)
    with memory_for(1 << 28), pytest.raises((ValueError, OSError, InputError)) as refused:
        read(path)
    assert str(tmp_path) in str(refused.value)
    refused.match(r"bytes by its header, and has |Expecting|Cannot allocate memory|needs at most")


@pytest.mark.parametrize("depth", [101, 100_000])
def test_deeply_nested_json_is_refused(depth: int) -> None:
    for start, end in (("[", "]"), ('{"a":', "}")):
        inner = "1" if start != "[" else ""
        with pytest.raises(ValueError, match="is nested more than 100 times"):
            json_of(start * depth + inner + end * depth)
        assert json_of(start * 100 + inner + end * 100)
