"""Bad input ends `calibrate` with one line that says what is wrong, exit code 2, and no files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rdk_cuda.decoding.models import Read, Reading
from rdk_cuda.recipes import resume
from rdk_cuda.recipes.inputs import loading, pairs
from rdk_cuda.recipes.inputs.pairs import read_models as read_both
from rdk_cuda.recipes.stages import affinity

from ..bounded_memory import disk_for
from .calibrating import Pair, command, count_reads, digests, refusal, write_texts

Refused = Callable[..., str]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_texts(tmp_path / "text")


@pytest.fixture
def refused(
    pair: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """What is answered to some options, on text of its own or the usual one."""

    def run(*options: object, text: list[Path] | None = None) -> str:
        before = sorted(tmp_path.iterdir())
        argv = command(pair, files if text is None else text, tmp_path / "out", *options)
        answer = refusal(capsys, argv)
        assert sorted(tmp_path.iterdir()) == before
        return answer

    return run


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "0"], "--keep: got '0'; needs a share above 0 and at most 1"),
        (["--keep", "0.5"], "--keep 0.5 is 200 tokens, fewer than the 257 special tokens and"),
        (["--keep", "0.75", "0.5"], "--keep 0.5 is 200 tokens, fewer than the 257 special"),
        (["--kept", "f", "--keep", "0.8"], "--kept f: names the tokens to keep; leave out --keep"),
        (["--kept", "f", "--keep-by", "variance"], "names the tokens to keep; leave out --keep an"),
        (["--keep-by", "luck"], "--keep-by luck: needs one of probability, frequency, variance"),
        (["--temperature", "0"], "--temperature: got '0'; needs a temperature above 0"),
        (["--temperature", "1e39"], "--temperature: got '1e39'; needs a temperature above 0"),
        (["--temperature", "1e-40"], "overflow float32; needs a higher temperature"),
        (["--virtual", "0"], "--virtual: got '0'; needs a whole number, at least 1"),
        (["--recording", "p\udce9"], "--recording 'p\\udce9': is not UTF-8; rename it"),
        (["--recording", "x[/y]/of"], "--recording"),
        (["--dynamic", "-1"], "--dynamic: got '-1'; needs a whole number, 0 for none"),
        (["--dynamic", "0", "--screen-bytes", "0.1"], "--screen-bytes 0.1: what a screen offers"),
        (["--memory", "inf"], "--memory: got 'inf'; needs GiB, above 0"),
        (["--memory", "0.0001"], "memory is 107,374 bytes; needs 1"),
        (["--device", "abacus"], "; needs cpu or cuda"),
        (["--device", "meta"], "--device meta: "),
        (["--draft-length", "400"], "tokens; needs at least 402 with --draft-length 400"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_options_out_of_range_are_named(refused: Refused, options: list[str], message: str) -> None:
    assert message in refused(*options)


# The text.


def test_unreadable_text_is_named(refused: Refused, files: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing.txt"
    for option in ("--text", "--held-out"):
        for file, reason in ((missing, "No such file"), (tmp_path, "Is a directory")):
            answer = refused(option, files[0], file)
            assert f"{option} {file}: {reason}" in answer


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b" \n\t ", "is empty; leave it out, or give some text"),
        (b"value \xff", "byte 6 is not UTF-8; needs plain text in UTF-8"),
    ],
)
def test_files_that_are_no_text_are_named(
    refused: Refused, files: list[Path], content: bytes, message: str
) -> None:
    files[2].write_bytes(content)
    assert f"--text {files[2]}: {message}" in refused()


def test_text_too_short_for_one_pass_is_refused(refused: Refused, files: list[Path]) -> None:
    files[0].write_text("def")
    answer = refused("--held-out", files[0], text=files[1:])
    assert "--held-out: the longest document has" in answer
    assert "needs at least 6 with --draft-length 4" in answer
    assert "--text: the longest doc" in refused("--held-out", files[1], text=[files[0]])


def test_models_that_read_too_little_are_refused(refused: Refused, pair: Pair) -> None:
    config = json.loads((pair[1] / "config.json").read_text())
    config["max_position_embeddings"] = 14
    (pair[1] / "config.json").write_text(json.dumps(config))
    answer = refused("--draft-length", 16)
    assert "at most 14 tokens are read at once; needs at least 18" in answer


def test_one_document_needs_others_to_measure_on(refused: Refused, files: list[Path]) -> None:
    answer = refused(text=files[:1])
    assert "--text is one document, so nothing can be held out of it" in answer
    assert "--held-out" in answer


def test_text_that_is_held_out_must_not_be_calibrated_on(
    refused: Refused, files: list[Path]
) -> None:
    copy = files[0].with_name("copy.txt")
    shutil.copy(files[0], copy)
    assert "--held-out copy.txt: is held out to measure on" in refused("--held-out", copy)


def test_too_little_text_to_find_when_drafts_end_is_refused(
    refused: Refused, files: list[Path]
) -> None:
    for file, word in zip(files, ("if", "in", "or", "is", "as"), strict=True):
        file.write_text(f"def value {word} " * 2)
    answer = refused("--draft-cost", "0.2", "--positions", "8")
    assert "--draft-cost: " in answer
    assert "needs 16: give more text, or" in answer


def test_what_overwriting_would_take_away_is_named(
    refused: Refused, files: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    inside = files[0].rename(tmp_path / "out" / "0.txt")
    for options, text in (((), [inside, *files[1:]]), (("--held-out", inside), files[1:])):
        answer = refused("--overwrite", *options, text=text)
        assert f"{inside} is in it and would be gone; move it first" in answer
    assert inside.exists()


# The models.


def test_a_missing_model_is_named(refused: Refused, pair: Pair) -> None:
    shutil.rmtree(pair[1])
    assert f"--drafter {pair[1]}: no such directory" in refused()


def test_pruning_a_drafter_with_another_tokenizer_is_refused(refused: Refused, pair: Pair) -> None:
    shutil.copy(pair[0] / "tokenizer_config.json", pair[1])
    content = json.loads((pair[0] / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (pair[1] / "tokenizer.json").write_text(json.dumps(content))
    assert "--keep: prunes a drafter with the target's tokenizer" in refused()


def test_heads_of_different_sizes_are_refused(refused: Refused, pair: Pair) -> None:
    from tests.tiny_models import save_model

    save_model(pair[1], hidden=8, seed=2, vocabulary=408)
    assert "predicts 400 tokens and the drafter 408" in refused()


def test_a_head_of_another_shape_than_its_model_is_refused(refused: Refused, pair: Pair) -> None:
    file = pair[1] / "model.safetensors"
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:, :6].contiguous()
    save_file(tensors, file, {"format": "pt"})
    assert f"--drafter {pair[1]}: " in refused()


@pytest.mark.parametrize(
    ("model", "weight", "value"),
    [(0, "model.embed_tokens.weight", torch.nan), (1, "lm_head.weight", torch.inf)],
)
def test_weights_that_are_not_finite_are_named(
    refused: Refused, pair: Pair, model: int, weight: str, value: float
) -> None:
    file = pair[model] / "model.safetensors"
    tensors = load_file(file)
    tensors[weight][7, 3] = value
    save_file(tensors, file, {"format": "pt"})
    assert f"{pair[model]}: {weight} has NaN or inf; needs finite weights" in refused()


def test_activations_that_overflow_on_held_out_text_are_refused(
    pair: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def then_overflowing(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(pairs, "read_models", reading_nan)
        return calibration(*given, **options)

    calibration = affinity.calibrate
    monkeypatch.setattr(affinity, "calibrate", then_overflowing)
    answer = refusal(capsys, command(pair, files, tmp_path / "out"))
    assert "acceptance at temperature 1 is NaN; needs models whose logits" in answer
    assert {path.name for path in tmp_path.iterdir()} == {"target", "drafter", "text"}


def reading_nan(target: Any, drafter: Any) -> Read:
    """Models of which the target's logits are NaN at the second of several tokens."""
    read = read_both(target, drafter)

    def spoiled(ids: torch.Tensor) -> Reading:
        result = read(ids)
        result.target_logits[:, 1:2] = torch.nan
        return result

    return spoiled


def test_what_cannot_be_saved_is_found_before_anything_is_read(
    refused: Refused, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = count_reads(monkeypatch)
    file = pair[1] / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": 0, "pad_token_id": -2}))
    answer = refused()
    assert f"--drafter {pair[1]}: GenerationConfig cannot be saved: " in answer
    assert "got -2" in answer
    file.unlink()
    with disk_for(64):
        assert f"File too large: '{pair[1].parent / 'out'}'" in refused()
    monkeypatch.setattr(loading, "disk_usage", lambda path: SimpleNamespace(free=9))
    assert "drafter(s) take" in (answer := refused())
    assert "and 9 are free; make room" in answer
    assert read == []


# The output.


def test_an_output_that_exists_is_refused_untouched(
    pair: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    argv = command(pair, files, output)
    assert f"--out {output}: exists; name another directory" in refusal(capsys, argv)
    (output / "mine").write_text("mine")
    message = "is not a saved drafter (it has no calibration.json of one) and is not overwritten"
    assert message in refusal(capsys, [*argv, "--overwrite"])
    assert (output / "mine").read_text() == "mine"
    file = output / "mine"
    for options in ((), ("--overwrite",)):
        assert "mine" in refusal(capsys, command(pair, files, file, *options))
    assert file.read_text() == "mine"
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    for options in ((), ("--overwrite",)):
        assert f"{link}" in refusal(capsys, command(pair, files, link, *options))
    assert link.is_symlink()


def test_an_output_without_a_folder_to_be_in_is_refused(
    pair: Pair, files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for parent in (tmp_path / "missing", files[0]):
        answer = refusal(capsys, command(pair, files, parent / "out"))
        assert f"{parent} is no directory; make it first" in answer


def test_odd_names_of_outputs_are_refused(
    pair: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path / "text")
    for name in (".", "..", "", "/"):
        for options in ((), ("--overwrite",)):
            refusal(capsys, command(pair, files, Path(name), *options))
    before = digests(tmp_path)
    answer = refusal(capsys, command(pair, files, tmp_path / ("x" * 250)))
    assert "File name too long" in answer
    assert digests(tmp_path) == before


# Ids to keep.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, 400]", "ids[1] is 400; needs a target id from 0 to 399"),
        (b"1\nthe\n", "needs a JSON list of target ids"),
        (b"\xff", "codec can't decode"),
    ],
)
def test_bad_ids_to_keep_are_named(
    refused: Refused, tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "kept.txt"
    assert f"--kept {file}: No such file or directory; needs a readable" in refused("--kept", file)
    file.write_bytes(content)
    answer = refused("--kept", file)
    assert f"--kept {file}" in answer
    assert message in answer


# The machine.


@pytest.mark.parametrize("while_writing", ["the recording", "the drafter"])
def test_a_disk_that_fills_while_safetensors_writes_is_one_line(
    pair: Pair,
    files: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    while_writing: str,
) -> None:
    module, name, file = {
        "the recording": (resume, "record", "out.recording.tmp/sums.safetensors"),
        "the drafter": (affinity, "save_drafter", "out"),
    }[while_writing]
    write = getattr(module, name)

    def written(*arguments: Any, **options: Any) -> Any:
        with disk_for(4096):
            return write(*arguments, **options)

    monkeypatch.setattr(module, name, written)
    line = refusal(capsys, command(pair, files, tmp_path / "out"))
    assert line.endswith(f"[Errno 27] File too large: '{tmp_path / file}'")
    assert not (tmp_path / "out").exists()
    left = [path.name for path in tmp_path.glob("*.tmp")]
    assert left == ([] if while_writing == "the recording" else ["out.recording.tmp"])
