"""Bad input ends `calibrate` with one line that says what is wrong, exit code 2, and no files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from rdk_cuda.decoding.models import Read, Reading
from rdk_cuda.recipes import resume
from rdk_cuda.recipes.inputs import loading, pairs
from rdk_cuda.recipes.inputs.pairs import read_models as read_both
from rdk_cuda.recipes.stages import affinity
from tests.tiny_models import save_model, save_tokenizer

from ..bounded_memory import disk_for
from .calibrating import Pair, command, count_reads, digests, write_texts
from .conftest import Desk

Refused = Callable[..., str]
Change = Callable[[], object]
PAIR, OUT = (Path("target"), Path("drafter")), Path("out")
WEIGHTS = "model.safetensors"
FILES = [Path("text") / f"{number}.txt" for number in range(5)]
LATER = "text/1.txt text/2.txt text/3.txt text/4.txt"


@pytest.fixture
def refused(desk: Desk, pair: Pair) -> Refused:
    """Gives the answer, with names within the folder, which is as it was afterwards."""
    write_texts(desk.folder / "text")
    desk.patch.chdir(desk.folder)

    def run(options: str | tuple[str, ...] = ()) -> str:
        given = options.split() if isinstance(options, str) else options
        before = set(desk.folder.rglob("*")), digests(desk.folder)
        answer = desk.refused(command(PAIR, FILES, OUT, *given)).replace(f"{desk.folder}/", "")
        assert (set(desk.folder.rglob("*")), digests(desk.folder)) == before
        return answer

    return run


OPTIONS: list[tuple[str | tuple[str, ...], str]] = [
    ("--keep 0", "--keep: got '0'; needs a share above 0 and at most 1"),
    ("--keep 0.5", "--keep 0.5 is 200 tokens, fewer than the 257 special tokens and"),
    ("--keep 0.75 0.5", "--keep 0.5 is 200 tokens, fewer than the 257 special"),
    ("--kept f --keep 0.8", "--kept f: names the tokens to keep; leave out --keep"),
    ("--kept f --keep-by frequency", "names the tokens to keep; leave out --keep an"),
    ("--keep-by luck", "--keep-by luck: needs one of probability, frequency"),
    ("--temperature 0", "--temperature: got '0'; needs a temperature above 0"),
    ("--temperature 1e39", "--temperature: got '1e39'; needs a temperature above 0"),
    ("--temperature 1e-40", "overflow float32; needs a higher temperature"),
    ("--virtual 0", "--virtual: got '0'; needs a whole number, at least 1"),
    ("--recording p\udce9", "--recording 'p\\udce9': is not UTF-8; rename it"),
    ("--recording x[/y]/of", "--recording"),
    ("--dynamic -1", "--dynamic: got '-1'; needs a whole number, 0 for none"),
    ("--dynamic 0 --screen-bytes 0.1", "--screen-bytes 0.1: what a screen offers"),
    ("--memory inf", "--memory: got 'inf'; needs GiB, above 0"),
    ("--memory 0.0001", "memory is 107,374 bytes; needs 1"),
    ("--device abacus", "; needs cpu or cuda"),
    ("--device meta", "--device meta: "),
    ("--draft-length 400", "tokens; needs at least 402 with --draft-length 400"),
    ("--nonsense", "unrecognized arguments: --nonsense"),
    ("--kept nowhere", "--kept nowhere: No such file or directory; needs a readable"),
    ("--text text/0.txt nowhere", "--text nowhere: No such file"),
    ("--text text/0.txt text", "--text text: Is a directory"),
    ("--held-out text/0.txt nowhere", "--held-out nowhere: No such file"),
    ("--held-out text/0.txt text", "--held-out text: Is a directory"),
    (
        "--text text/0.txt",
        "--text is one document, so nothing can be held out ... --held-out",
    ),
    ("--out nowhere/out", "nowhere is no directory; make it first"),
    ("--out text/0.txt/out", "text/0.txt is no directory; make it first"),
    ("--out " + "x" * 250, "File name too long"),
    *(
        (("--out", name, *more), "--out")
        for name in (".", "text/..", "", "/", "text/0.txt")
        for more in ((), ("--overwrite",))
    ),
]


def written(name: str, content: bytes = b"def") -> Change:
    return lambda: Path(name).write_bytes(content)


def configured(name: str, **changes: object) -> Change:
    return lambda: Path(name).write_text(json.dumps(json.loads(Path(name).read_text()) | changes))


def weighted(model: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def run() -> None:
        file = Path(model) / WEIGHTS
        tensors = load_file(file)
        tensors[name] = change(tensors[name]).contiguous()
        save_file(tensors, file, {"format": "pt"})

    return run


def with_a(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda weight: weight.index_fill(0, torch.tensor([7]), value)


def other_tokenizer() -> None:
    shutil.copy("target/tokenizer_config.json", "drafter")
    content = json.loads(Path("target/tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    Path("drafter/tokenizer.json").write_text(json.dumps(content))


def hardly_any_text() -> None:
    for file, word in zip(FILES, ("if", "in", "or", "is", "as"), strict=True):
        file.write_text(f"def value {word} " * 2)


def mine_in_the_output() -> None:
    OUT.mkdir()
    Path("out/mine.txt").write_text("mine")


def no_sums() -> None:
    Path("out.recording.tmp").mkdir()
    Path("out.recording.tmp/sums.safetensors").write_bytes(b"\x08" + bytes(100))


NO_MODELS = "--target none --drafter none "  # so it is refused before they are loaded
STATE = "out.recording.tmp"
CHANGES: list[tuple[Change, str, str]] = [
    (written("text/2.txt", b" \n\t "), "", "--text text/2.txt: is empty; leave it out, or give"),
    (written("text/2.txt", b"value \xff"), "", "--text text/2.txt: byte 6 is not UTF-8; needs pl"),
    (
        written("text/0.txt"),
        f"--held-out text/0.txt --text {LATER}",
        "--held-out: the longest document has ... needs at least 6 with --draft-length 4",
    ),
    (written("text/0.txt"), "--held-out text/1.txt --text text/0.txt", "--text: the longest doc"),
    (
        configured("drafter/config.json", max_position_embeddings=11),
        "",
        "--drafter drafter: HuggingFaceModel: LlamaForCausalLM reads 11 tokens at most; needs 12",
    ),
    (
        lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=400, n_positions=11, n_embd=8, n_layer=1, n_head=2)
        ).save_pretrained("drafter"),
        "",
        "--drafter drafter: HuggingFaceModel: GPT2LMHeadModel reads 11 tokens at most; needs 12",
    ),
    (
        lambda: shutil.copy("text/0.txt", "copy.txt"),
        "--held-out copy.txt",
        "--held-out copy.txt: is held out to measure on",
    ),
    (
        hardly_any_text,
        "--draft-cost 0.2 --positions 8",
        "--draft-cost:  ... needs 16: give more text, or",
    ),
    (
        mine_in_the_output,
        f"--overwrite --text out/mine.txt {LATER}",
        "out/mine.txt is in it and would be gone; move it first",
    ),
    (
        mine_in_the_output,
        f"--overwrite --held-out out/mine.txt --text {LATER}",
        "out/mine.txt is in it and would be gone; move it first",
    ),
    (mine_in_the_output, "", "--out out: exists; name another directory"),
    (
        mine_in_the_output,
        "--overwrite",
        "is not a saved drafter (it has no calibration.json of one) and is not overwritten",
    ),
    (lambda: OUT.symlink_to("nowhere"), "", "out"),
    (lambda: OUT.symlink_to("nowhere"), "--overwrite", "out"),
    (lambda: shutil.rmtree("drafter"), "", "--drafter drafter: no such directory"),
    (lambda: Path("drafter/config.json").unlink(), "", "--drafter drafter: no config.json"),
    (
        lambda: [file.unlink() for file in Path("target").glob("tokenizer*")],
        "",
        "--target target: holds no tokenizer",
    ),
    (lambda: os.truncate(f"drafter/{WEIGHTS}", 1000), "", "--drafter drafter: "),
    (lambda: Path(f"drafter/{WEIGHTS}").unlink(), "", "--drafter drafter: "),
    (
        lambda: Path(f"drafter/{WEIGHTS}").rename("drafter/pytorch_model.bin"),
        "",
        "--drafter drafter:  ... safetensors",
    ),
    (
        configured("drafter/config.json", num_hidden_layers=3),
        "",
        "--drafter drafter: its files lack",
    ),
    (lambda: save_tokenizer(Path("target"), 450), "", "tokenizer has 450 tokens"),
    (other_tokenizer, "", "--keep: prunes a drafter with the target's tokenizer"),
    (
        lambda: save_model(Path("drafter"), hidden=8, seed=2, vocabulary=408),
        "",
        "predicts 400 tokens and the drafter 408",
    ),
    (
        weighted("drafter", "lm_head.weight", lambda weight: weight[:, :6]),
        "",
        "--drafter drafter: ",
    ),
    (
        weighted("target", "model.embed_tokens.weight", with_a(torch.nan)),
        "",
        "target: model.embed_tokens.weight has NaN or inf; needs finite weights",
    ),
    (
        weighted("drafter", "lm_head.weight", with_a(torch.inf)),
        "",
        "drafter: lm_head.weight has NaN or inf; needs finite weights",
    ),
    (
        written("kept", b"[1, 400]"),
        "--kept kept",
        "--kept kept ... ids[1] is 400; needs a target id from 0 to 399",
    ),
    (
        written("kept", b"1\nthe\n"),
        "--kept kept",
        "--kept kept ... needs a JSON list of target ids",
    ),
    (written("kept", b"\xff"), "--kept kept", "--kept kept ... codec can't decode"),
    (
        written(STATE, b"of an earlier version"),
        "",
        f"{STATE} is a file; needs a folder ... move or delete it to begin anew",
    ),
    (
        no_sums,
        "",
        f"{STATE}/sums.safetensors is not a complete safetensors file"
        " ... move or delete it to begin anew",
    ),
    *(
        (change, f"{NO_MODELS}--recording {file}", f"--recording {file} ... {message}")
        for change, file, message in (
            (str, "text", "is no recording (No such file or directory); name another folder"),
            (
                lambda: os.mkfifo("pipe"),
                "pipe",
                "is no recording (Not a directory); name another folder",
            ),
            (str, "missing/file", "is no directory; make it first"),
            (str, "out", "is in --out out"),
            (str, "out/recording", "is in --out out"),
            (written("mine"), "mine", "is a file; needs a folder ... reads the text anew"),
        )
    ),
]


@pytest.mark.parametrize(
    ("change", "options", "message"), [*((str, *row) for row in OPTIONS), *CHANGES]
)
def test_bad_input_is_refused_in_one_line_that_names_it(
    refused: Refused, change: Change, options: str | tuple[str, ...], message: str
) -> None:
    change()
    answer = refused(options)
    for part in message.split(" ... "):
        assert part in answer


def test_activations_that_overflow_on_held_out_text_are_refused(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def then_overflowing(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(pairs, "read_models", reading_nan)
        return calibration(*given, **options)

    calibration = affinity.calibrate
    monkeypatch.setattr(affinity, "calibrate", then_overflowing)
    assert "acceptance at temperature 1 is NaN; needs models whose logits" in refused()


def reading_nan(target: Any, drafter: Any) -> Read:
    """Models of which the target's logits are NaN at the second of several tokens."""
    read = read_both(target, drafter)

    def spoiled(ids: torch.Tensor) -> Reading:
        result = read(ids)
        result.target_logits[:, 1:2] = torch.nan
        return result

    return spoiled


def test_what_cannot_be_saved_is_found_before_anything_is_read(
    refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = count_reads(monkeypatch)
    file = Path("drafter/generation_config.json")
    file.write_text(json.dumps({"eos_token_id": 0, "pad_token_id": -2}))
    answer = refused()
    assert "--drafter drafter: GenerationConfig cannot be saved: " in answer
    assert "got -2" in answer
    file.unlink()
    with disk_for(64):
        assert "File too large: 'out'" in refused()
    monkeypatch.setattr(loading, "disk_usage", lambda path: SimpleNamespace(free=9))
    assert "drafter(s) take" in (answer := refused())
    assert "and 9 are free; make room" in answer
    assert read == []


@pytest.mark.parametrize("while_writing", ["the recording", "the drafter"])
def test_a_disk_that_fills_while_safetensors_writes_is_one_line(
    desk: Desk, pair: Pair, while_writing: str
) -> None:
    module, name, file = {
        "the recording": (resume, "record", "out.recording.tmp/sums.safetensors"),
        "the drafter": (affinity, "save_drafter", "out"),
    }[while_writing]
    write = getattr(module, name)

    def writing(*arguments: Any, **options: Any) -> Any:
        with disk_for(4096):
            return write(*arguments, **options)

    desk.patch.setattr(module, name, writing)
    files = write_texts(desk.folder / "text")
    line = desk.refused(command(pair, files, desk.out))
    assert line.endswith(f"[Errno 27] File too large: '{desk.folder / file}'")
    assert not desk.out.exists()
    left = [path.name for path in desk.folder.glob("*.tmp")]
    assert left == ([] if while_writing == "the recording" else ["out.recording.tmp"])
