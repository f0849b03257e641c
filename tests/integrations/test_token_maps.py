"""Maps of other projects give the vocabulary that they mean, and go back as they came."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.integrations.token_maps import (
    TokenMapError,
    d2t_tensors,
    from_d2t,
    from_ids,
    read_token_map,
    write_d2t,
    write_hot_tokens,
)

IDS, SIZE = [17, 3, 40, 0, 9, 8], 41
VOCABULARY = Vocabulary(IDS, SIZE)


def checkpoint(prefix: str = "") -> dict[str, Tensor]:
    """With the verifier's head too, which speculators saves while it trains."""
    tensors = {"lm_head.weight": torch.zeros(6, 4), "midlayer.norm.weight": torch.ones(4)}
    tensors |= {f"{prefix}{name}": each for name, each in d2t_tensors(VOCABULARY).items()}
    return tensors | {"verifier_lm_head.weight": torch.zeros(SIZE, 4)}


def saved(content: object, name: str, **options: Any) -> Callable[[Path], object]:
    return lambda folder: torch.save(content, folder / name, **options)


def plain(tensors: dict[str, Tensor], name: str) -> Callable[[Path], object]:
    return lambda folder: save_file(tensors, folder / name)


def text(content: str, name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(content, encoding="utf-8")


def any_byte(folder: Path) -> None:
    """The first is the lowest of the header's length, and may be a pickle's first, 128."""
    content = save(d2t_tensors(VOCABULARY))
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].ljust(256 + 128)
    rest = len(header).to_bytes(8, "little") + header + content[8 + length :]
    (folder / "map").write_bytes(rest)


def shards(suffix: str, stem: str, write: Callable[..., object]) -> Callable[[Path], object]:
    def written(folder: Path) -> None:
        tensors = checkpoint()
        where = {name: f"part-{at % 3}.{suffix}" for at, name in enumerate(tensors)}
        for file in set(where.values()):
            part = {name: tensors[name] for name in tensors if where[name] == file}
            write(part, folder / file)
        (folder / f"{stem}.index.json").write_text(json.dumps({"weight_map": where}))

    return written


# The order of a list is that of the head's rows. The format shows in the content, not in the name.
LEGACY = {"_use_new_zipfile_serialization": False}
SAFE, BIN = "model.safetensors", "pytorch_model.bin"
FILES: dict[str, Callable[[Path], object]] = {
    "a list": saved(IDS, "map"),
    "a tuple": saved(tuple(IDS), "map.txt"),
    "int64": saved(torch.tensor(IDS), "map"),
    "int32, legacy": saved(torch.tensor(IDS, dtype=torch.int32), "map", **LEGACY),
    "a list, legacy": saved(IDS, "map", **LEGACY),
    "JSON": text(json.dumps(IDS), "map.pt"),
    "JSON in lines": text("\n [17, 3,\n40, 0, 9, 8]\n", "map"),
    "d2t": plain(d2t_tensors(VOCABULARY), "map.npy"),
    "any byte": any_byte,
    "a checkpoint": plain(checkpoint(), SAFE),
    "a checkpoint, model.": plain(checkpoint("model."), SAFE),
    "a checkpoint of torch.save": saved(checkpoint(), BIN),
    "a checkpoint of torch.save, legacy": saved(checkpoint(), BIN, **LEGACY),
    "shards": shards("safetensors", SAFE, save_file),
    "shards of torch.save": shards("bin", BIN, torch.save),
    "no mask and no head": plain({"d2t": d2t_tensors(VOCABULARY)["d2t"]}, SAFE),
}


@pytest.mark.parametrize("name", FILES)
def test_maps_of_every_project_are_read(tmp_path: Path, name: str) -> None:
    FILES[name](tmp_path)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("map")]
    whole = [*files, *tmp_path.glob(SAFE), *tmp_path.glob(BIN)]
    for path in (*whole, *([] if files else [tmp_path])):
        assert read_token_map(path, SIZE) == VOCABULARY
        assert read_token_map(str(path), SIZE) == VOCABULARY


def test_a_list_that_names_its_end_token_again_can_mask_the_repeat(tmp_path: Path) -> None:
    """As FR-Spec's script writes it where the end token comes with one that is frequent."""
    torch.save([5, 1, 2, 1, 9, 5], tmp_path / "freq_4.pt")
    vocabulary = read_token_map(tmp_path / "freq_4.pt", SIZE, mask_repeats=True)
    assert vocabulary.draft_ids.tolist() == [5, 1, 2, -1, 9, -1]
    with pytest.raises(TokenMapError, match=r"draft_ids\[1\] and draft_ids\[3\] are both 1.*mask"):
        read_token_map(tmp_path / "freq_4.pt", SIZE)


def test_of_repeats_the_first_is_kept() -> None:
    ids = torch.randint(0, 500, (4000,), generator=torch.Generator().manual_seed(0)).tolist()
    vocabulary = from_ids(ids, 4096, mask_repeats=True)
    expected = [id if ids.index(id) == at else -1 for at, id in enumerate(ids)]
    assert vocabulary.draft_ids.tolist() == expected


def test_a_head_with_the_whole_vocabulary_has_offsets_of_zero() -> None:
    """EAGLE-3 for Vicuna: zeros, and a mask that may never have been filled."""
    zeros = torch.zeros(SIZE, dtype=torch.int64)
    for mask in (None, torch.zeros(SIZE, dtype=torch.bool), torch.ones(SIZE, dtype=torch.bool)):
        assert from_d2t(zeros, SIZE, t2d=mask) == Vocabulary.identity(SIZE)


vocabularies = st.integers(1, 60).flatmap(
    lambda size: st.tuples(
        st.lists(st.integers(0, size - 1), min_size=1, unique=True), st.just(size)
    )
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(vocabularies)
def test_with_the_mask_either_convention_is_recognised(drawn: tuple[list[int], int]) -> None:
    vocabulary = Vocabulary(*drawn)
    tensors = d2t_tensors(vocabulary)
    size, mask = vocabulary.target_size, tensors["t2d"]
    assert from_d2t(tensors["d2t"], size, t2d=mask) == vocabulary
    assert from_d2t(vocabulary.draft_ids, size, t2d=mask) == vocabulary


@settings(deadline=None, derandomize=True, max_examples=100)
@given(vocabularies)
def test_without_the_mask_a_reading_is_right_or_refused(drawn: tuple[list[int], int]) -> None:
    vocabulary = Vocabulary(*drawn)
    for stored, d2t in (
        ("offset", d2t_tensors(vocabulary)["d2t"]),
        ("absolute", vocabulary.draft_ids),
    ):
        refusal = ""
        try:
            assert from_d2t(d2t, vocabulary.target_size) == vocabulary
        except TokenMapError as error:
            refusal = str(error)
        assert not refusal or "may be offsets" in refusal
        assert from_d2t(d2t, vocabulary.target_size, stored=stored) == vocabulary  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [8000 / 32000, 32000 / 128256])
def test_maps_of_the_usual_sizes_are_recognised_without_a_mask(share: float) -> None:
    size = 128256
    random = torch.Generator().manual_seed(0)
    kept = torch.rand(size, generator=random).argsort()[: int(share * size)].sort().values
    vocabulary = Vocabulary(kept, size)
    assert from_d2t(d2t_tensors(vocabulary)["d2t"], size) == vocabulary
    assert from_d2t(kept, size) == vocabulary


def test_a_map_that_may_be_either_is_refused_unless_the_caller_says_which(tmp_path: Path) -> None:
    """torch.arange as a buffer's default: the identity as ids, every second token as offsets."""
    save_file({"d2t": torch.arange(8)}, tmp_path / "model.safetensors")
    with pytest.raises(TokenMapError, match=r"may be offsets \(first tokens \[0, 2, 4, 6\]\)"):
        read_token_map(tmp_path, SIZE)
    for stored, step in (("absolute", 1), ("offset", 2)):
        found = read_token_map(tmp_path, SIZE, stored=stored)  # type: ignore[arg-type]
        assert found.draft_ids.tolist() == [*range(0, 8 * step, step)]


# Back again.


@settings(deadline=None, derandomize=True, max_examples=50)
@given(vocabularies)
def test_what_is_written_reads_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[list[int], int]
) -> None:
    vocabulary, folder = Vocabulary(*drawn), tmp_path_factory.mktemp("written")
    size = vocabulary.target_size
    write_hot_tokens(vocabulary, folder / "hot.pt")
    assert read_token_map(folder / "hot.pt", size) == vocabulary
    write_d2t(vocabulary, folder / "map.safetensors")
    assert read_token_map(folder / "map.safetensors", size) == vocabulary
    assert {path.name for path in folder.iterdir()} == {"hot.pt", "map.safetensors"}


def test_maps_are_written_as_sglang_and_vllm_read_them(tmp_path: Path) -> None:
    """SGLang takes a tensor of the list; vLLM scatters logits to `arange + d2t`, an int64."""
    write_hot_tokens(VOCABULARY, tmp_path / "hot.pt")
    hot = torch.tensor(torch.load(tmp_path / "hot.pt", weights_only=True), dtype=torch.int64)
    assert torch.equal(hot, VOCABULARY.draft_ids)
    write_d2t(VOCABULARY, tmp_path / "map.safetensors")
    tensors = load_file(tmp_path / "map.safetensors")
    assert set(tensors) == {"d2t", "t2d"}
    assert tensors["d2t"].dtype == torch.int64
    assert (torch.arange(6) + tensors["d2t"]).tolist() == IDS
    assert tensors["t2d"].dtype == torch.bool
    assert tensors["t2d"].nonzero().flatten().tolist() == sorted(IDS)


def test_a_drafter_token_that_the_target_lacks_cannot_be_written(tmp_path: Path) -> None:
    vocabulary = Vocabulary([4, -1, 2], SIZE)
    for write in (write_hot_tokens, write_d2t):
        with pytest.raises(ValueError, match="drafter token 1 has no target id"):
            write(vocabulary, tmp_path / "map")
    assert not list(tmp_path.iterdir())
