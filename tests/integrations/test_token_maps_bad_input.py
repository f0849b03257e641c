"""A file that is no map, could run code, or does not fit the model is refused by its name."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from rdk_cuda import Vocabulary
from rdk_cuda.integrations.token_maps import (
    TokenMapError,
    d2t_tensors,
    from_d2t,
    from_ids,
    read_token_map,
)
from rdk_cuda.integrations.token_maps import files as token_map_files

from ..bounded_memory import memory_for

# torch warns of pickles that are not its own before it refuses them.
pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol")

SIZE = 41
RAN = "code ran"


class Code:
    """What a pickle may do to whoever opens it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{RAN}'",)


def torch_bytes(content: object, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def compressed(content: bytes) -> bytes:
    file = io.BytesIO()
    packed = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(content)) as plain, packed:
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry.filename))
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        torch_bytes(Code()),
        torch_bytes([1, Code()]),
        torch_bytes({"d2t": Code()}),
        torch_bytes(Code(), _use_new_zipfile_serialization=False),
        pickle.dumps(Code()),
        pickle.dumps(Code(), protocol=0),
    ],
    ids=["list", "entry", "d2t", "legacy", "pickle", "protocol 0"],
)
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_pickle_that_carries_code_is_refused_and_never_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, as_folder: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(content)
    with pytest.raises(TokenMapError) as refused:
        read_token_map(tmp_path if as_folder else path, SIZE)
    said = str(refused.value)
    assert "pytorch_model.bin" in said
    assert "\n" not in said
    assert "weights_only" not in said, "torch's own message tells how to run it"
    assert not Path(RAN).exists()


def test_the_refusal_of_code_names_what_it_asks_for(tmp_path: Path) -> None:
    torch.save(Code(), tmp_path / "freq.pt")
    with pytest.raises(TokenMapError, match=r"freq\.pt: is a pickle that asks for posix\.system"):
        read_token_map(tmp_path / "freq.pt", SIZE)


LISTS = {
    "beyond V_t": ([1, 41], r"ids\[1\] is 41; needs a target id from 0 to 40"),
    "negative": ([1, -1], r"ids\[1\] is -1; needs a target id from 0 to 40"),
    "twice": ([7, 8, 7], r"draft_ids\[0\] and draft_ids\[2\] are both 7"),
    "longer than V_t": ([*range(42)], r"has shape \[42\] .* with V_d from 1 to V_t = 41"),
    "empty": ([], r"has shape \[0\] .* with V_d from 1 to V_t"),
}


@pytest.mark.parametrize(("ids", "message"), LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize("form", ["pt", "tensor", "json"])
def test_a_list_that_does_not_fit_the_model(
    tmp_path: Path, ids: list[int], message: str, form: str
) -> None:
    path = tmp_path / "kept"
    path.write_bytes(
        {
            "pt": lambda: torch_bytes(ids),
            "tensor": lambda: torch_bytes(torch.tensor(ids, dtype=torch.int64)),
            "json": lambda: json.dumps(ids).encode(),
        }[form]()
    )
    with pytest.raises(TokenMapError, match=message) as refused:
        read_token_map(path, SIZE)
    assert str(refused.value).startswith(str(path))


NO_IDS = r"needs \[V_d\] target ids, integers"
NO_LISTS = {
    "float": (torch_bytes([1, 2.0]), f"dtype torch.float64; {NO_IDS}"),
    "bool": (torch_bytes([True]), f"dtype torch.bool; {NO_IDS}"),
    "text in a list": (torch_bytes(["the"]), f"is a list; {NO_IDS}"),
    "nested": (torch_bytes([[1, 2]]), r"shape \[1, 2\]"),
    "huge": (b"[99999999999999999999999]", NO_IDS),
    "scores": (torch_bytes(torch.rand(SIZE)), "dtype torch.float32; needs .* .of scores"),
    "mask": (torch_bytes(torch.ones(SIZE) > 0), "dtype torch.bool"),
    "matrix": (torch_bytes(torch.ones(3, 2).long()), r"shape \[3, 2\]"),
    "number": (torch_bytes(3), "holds a int without named tensors"),
    "sparse": (torch_bytes(torch.tensor([0, 1]).to_sparse()), NO_IDS),
    "meta": (torch_bytes(torch.arange(3, device="meta")), NO_IDS),
    "frequencies": (torch_bytes({7: 30, 2: 11}), "a dict without named tensors"),
    "expanded": (torch_bytes(torch.zeros(1).long().expand(10**12)), r"shape \[1000000000000\]"),
    "numpy scalar": (torch_bytes([np.int64(3)]), "asks for numpy"),
    "torch truncated": (torch_bytes([1, 2, 3])[:200], "is no whole file of torch.save"),
    "zip of another kind": (compressed(torch_bytes([1]))[:-9], "is no whole file"),
    "json object": (b'{"ids": [1]}', f"is a dict; {NO_IDS}"),
    "json of text": (b'["1"]', NO_IDS),
    "broken json": (b"[1, 2", "needs a JSON list of target ids"),
    "deep json": (b"[" * 100_000, "needs a JSON list of target ids"),
    "words": (b"1\nthe\n", "needs a JSON list of target ids"),
    "not UTF-8": (b"\xff\xfe1", "codec can't decode"),
    "a safetensors file without d2t": (save({"a": torch.ones(2)}), "has no d2t"),
    "a safetensors file cut short": (save({"d2t": torch.ones(9).long()})[:-8], "not a complete"),
}


@pytest.mark.parametrize(("content", "message"), NO_LISTS.values(), ids=NO_LISTS.keys())
def test_what_is_no_map(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "kept"
    path.write_bytes(content)
    with pytest.raises(TokenMapError, match=message) as refused:
        read_token_map(path, SIZE)
    assert str(refused.value).startswith(str(path))


def test_an_archive_that_unpacks_to_more_than_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept.pt").write_bytes(compressed(torch_bytes([7] * 10**6)))
    with pytest.raises(TokenMapError, match=r"unpacks to .* needs an uncompressed file"):
        read_token_map(tmp_path / "kept.pt", 2**20)


@pytest.mark.parametrize("form", ["json", "legacy", "pickle in a zip"])
def test_lists_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(token_map_files, "_LARGEST_LIST", 100)
    ids = [*range(200)]
    path = tmp_path / "kept"
    path.write_bytes(
        {
            "json": lambda: json.dumps(ids).encode(),
            "legacy": lambda: torch_bytes(ids, _use_new_zipfile_serialization=False),
            "pickle in a zip": lambda: torch_bytes(ids),
        }[form]()
    )
    with pytest.raises(TokenMapError, match="at most 100"):
        read_token_map(path, 200)


def test_a_file_that_is_not_there_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    """SGLang would take such a path for a repository on a hub."""
    with pytest.raises(FileNotFoundError):
        read_token_map("thunlp/LLaMA3-Instruct-8B-FR-Spec/freq_32768.pt", SIZE)
    with pytest.raises(TokenMapError, match=r"holds neither model\.safetensors"):
        read_token_map(tmp_path, SIZE)


# d2t.

GOOD = d2t_tensors(Vocabulary([3, 5, 6, 20], SIZE))
MASK = GOOD["t2d"]

MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "ids beyond V_t": ({"d2t": GOOD["d2t"] + 21}, "as offset its ids are 24 to 41, outside"),
    "negative ids": ({"d2t": GOOD["d2t"] - 9}, "its ids are -6 to 11, outside"),
    "an id twice": ({"d2t": torch.tensor([3, 2, 3])}, "as offset it has 3 2 times; as absolute"),
    "d2t longer than V_t": ({"d2t": torch.zeros(42).long()}, r"d2t has shape \[42\]"),
    "d2t empty": ({"d2t": torch.zeros(0).long()}, r"d2t has shape \[0\]"),
    "d2t of floats": ({"d2t": torch.zeros(4)}, "dtype torch.float32"),
    "another head": (
        GOOD | {"lm_head.weight": torch.zeros(5, 2)},
        "d2t has 4 entries and lm_head.weight 5 rows",
    ),
    "t2d too short": (
        GOOD | {"t2d": MASK[:-1]},
        r"t2d has shape \[40\] .* needs torch.bool \[41\]",
    ),
    "t2d too long": (GOOD | {"t2d": torch.cat([MASK, MASK])}, r"t2d has shape \[82\]"),
    "t2d an index": (GOOD | {"t2d": MASK.long()}, "t2d has .* dtype torch.int64"),
    "t2d of other tokens": (GOOD | {"t2d": MASK.roll(1)}, "not the 4 that t2d marks"),
    "t2d of more tokens": (GOOD | {"t2d": MASK | MASK.roll(1)}, "not the 7 that t2d marks"),
    "two maps": (GOOD | {"model.d2t": GOOD["d2t"] + 1}, "has more than one d2t"),
    "no map": ({"t2d": MASK}, "has no d2t"),
}


@pytest.mark.parametrize(("tensors", "message"), MISFITS.values(), ids=MISFITS.keys())
@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_checkpoint_that_does_not_fit_the_model(
    tmp_path: Path, tensors: dict[str, Any], message: str, form: str
) -> None:
    path = tmp_path / "drafter"
    (save_file if form == "safetensors" else torch.save)(tensors, path)
    with pytest.raises(TokenMapError, match=message) as refused:
        read_token_map(path, SIZE)
    assert str(refused.value).startswith(str(path))


def test_a_convention_that_the_mask_contradicts_is_refused(tmp_path: Path) -> None:
    save_file(GOOD, tmp_path / "drafter")
    with pytest.raises(TokenMapError, match="as absolute"):
        read_token_map(tmp_path / "drafter", SIZE, stored="absolute")
    with pytest.raises(ValueError, match="stored is 'ids'; needs 'offset', 'absolute' or None"):
        from_d2t(GOOD["d2t"], SIZE, stored="ids")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": 3}', "{", '{"weight_map": {"a": 1}}']
)
def test_a_broken_index(tmp_path: Path, index: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(TokenMapError, match=r"index\.json: is no index|has no d2t"):
        read_token_map(tmp_path, SIZE)


@pytest.mark.parametrize("file", ["../outside.safetensors", "..", "", "missing.safetensors"])
def test_an_index_leads_only_to_files_next_to_it(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "drafter"
    folder.mkdir()
    save_file(GOOD, tmp_path / "outside.safetensors")
    content = json.dumps({"weight_map": {"d2t": file}})
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(TokenMapError, match="which is not next to it"):
        read_token_map(folder, SIZE)


@pytest.mark.parametrize("values", [[1.5], [[1]], [], [True]])
def test_values_in_memory_that_are_no_integers(values: Any) -> None:
    for read in (from_ids, from_d2t):
        with pytest.raises(TokenMapError, match=r"integers with V_d from 1 to V_t = 41"):
            read(torch.tensor(values), SIZE)


def test_values_in_memory_are_at_most_as_many_as_the_target_has() -> None:
    expanded = torch.zeros(1, dtype=torch.int64).expand(2**31)
    with memory_for(1 << 28):
        for read in (from_ids, from_d2t):
            with pytest.raises(TokenMapError, match=r"has shape \[2147483648\]"):
                read(expanded, SIZE)


WHOLE = [torch_bytes([3, 1, 2]), torch_bytes(GOOD), save(GOOD), b"[3, 1, 2]"]


def _damage(content: bytes, random: Random) -> bytes:
    """Some bytes changed, anywhere or near an end, where the directories are; or parts missing."""
    damaged = bytearray(content)
    near = random.choice([len(damaged), min(128, len(damaged))])
    for _ in range(random.randint(1, 8)):
        at = random.randrange(near)
        damaged[random.choice([at, -1 - at])] = random.choice([0, 255, random.randrange(256)])
    if random.random() < 0.2:
        del damaged[random.randrange(len(damaged)) :]
    return bytes(damaged)


@pytest.mark.parametrize("count", [80, pytest.param(1500, marks=pytest.mark.night)])
@pytest.mark.parametrize("form", range(len(WHOLE)))
def test_a_damaged_file_is_read_or_refused_in_one_line(
    tmp_path: Path, form: int, count: int
) -> None:
    path, refusals = tmp_path / "kept", []
    for seed in range(count):
        path.write_bytes(_damage(WHOLE[form], Random(seed)))
        try:
            ids = read_token_map(path, SIZE).draft_ids
        except (TokenMapError, OSError) as error:
            refusals.append(str(error))
        else:
            assert bool(((ids >= 0) & (ids < SIZE)).all()), seed
    assert len(refusals) > 0
    assert not any("\n" in refusal for refusal in refusals)
