"""`python -m rdk_cuda evaluate` writes what a saved drafter is worth, or says what is wrong."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import rdk_cuda
from rdk_cuda.__main__ import main
from rdk_cuda.functional import redistribute
from rdk_cuda.integrations.huggingface.saved_drafter import load_drafter
from rdk_cuda.recipes.inputs import pairs
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.inputs.pairs import ModelPair
from rdk_cuda.recipes.report.rows import FIELDS
from rdk_cuda.recipes.timing import Times
from tests import interruptible
from tests.tiny_models import save_model, save_tokenizer

from .calibrating import digests, sources, write_texts
from .conftest import Calibrated, Desk

METHODS = ["full drafter", "pruned drafter", "virtual+dynamic"]


def arguments(
    calibrated: Calibrated, target: Path, output: Path, *options: object, saved: Path | None = None
) -> list[str]:
    given = (saved or calibrated.saved, "--target", target, "--text", *calibrated.held_out)
    return ["evaluate", *map(str, (*given, "--output", output, *options))]


# What it writes.


def test_it_writes_json_csv_and_picture_and_prints_the_table(desk: Desk) -> None:
    output = desk.folder / "new" / "output"
    temperatures = ("--temperature", 1, 1.0, 0.6, 0)  # one of them twice
    assert main(arguments(desk.calibrated, desk.pair[0], output, *temperatures)) == 0
    printed = desk.capsys.readouterr().out
    assert sorted(path.name for path in output.iterdir()) == [
        "evaluation.csv",
        "evaluation.json",
        "evaluation.png",
    ]
    content = json.loads((output / "evaluation.json").read_text())
    rows = content["rows"]
    assert [(row["temperature"], row["method"]) for row in rows] == [
        (temperature, method) for temperature in (1.0, 0.6, 0.0) for method in METHODS
    ]
    for row in rows:
        assert 0 <= row["acceptance_low"] <= row["acceptance"] <= row["acceptance_high"] <= 1
        assert row["draft_length"] == 4
        assert f"{row['acceptance']:.3f}" in printed
        assert f"[{row['acceptance_low']:.3f}, {row['acceptance_high']:.3f}]" in printed
    with (output / "evaluation.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(FIELDS)
    assert [float(row["acceptance"]) for row in table] == [row["acceptance"] for row in rows]
    assert (output / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    for text in (*METHODS, "Temperature 0.6", "Greedy", f"{output}", "written."):
        assert text in printed
    assert "nan" not in printed
    assert "95 % intervals, a bootstrap over documents" in " ".join(printed.split())
    assert max(map(len, printed.split("Measured")[0].splitlines())) <= 80
    assert "…" not in printed

    assert content["versions"]["rdk_cuda"] == rdk_cuda.__version__
    assert content["text"] == sources(desk.calibrated.held_out)
    assert content["calibration"]["held_out"] == content["text"]
    assert content["calibration"]["keep"] == 0.75
    assert rows[2]["tuned"] == content["calibration"]["tuned"] != ""


Evaluated = Callable[..., tuple[str, dict[str, Any]]]


@pytest.fixture
def evaluated(desk: Desk) -> Evaluated:
    """What is printed, in one line, and what is written; of other text, target or drafter, too."""

    def run(*options: object, saved: Path | None = None, **of: Any) -> tuple[str, dict[str, Any]]:
        content = desk.evaluate(saved or desk.calibrated.saved, *options, **of)
        return desk.printed(), content

    return run


def test_the_default_temperature_is_the_calibrated_one(evaluated: Evaluated, spoiled: Path) -> None:
    altered(spoiled, lambda settings: settings.update(temperature=0.7))
    printed, content = evaluated(saved=spoiled)
    assert "Temperature 0.7, held-out text:" in printed
    assert {row["temperature"] for row in content["rows"]} == {0.7}
    printed, _ = evaluated("--temperature", 1, saved=spoiled)
    assert "Temperature 1 (calibrated for 0.7), held-out text:" in printed


@pytest.fixture
def few_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdk_cuda.recipes.inputs.documents.HELD_OUT_POSITIONS", 400)


@pytest.mark.usefixtures("few_positions")
def test_every_document_is_measured_unless_fewer_positions_are_asked_for(
    evaluated: Evaluated, tmp_path: Path
) -> None:
    files = write_texts(tmp_path / "many", count=7, words=60)
    short = tmp_path / "short.txt"
    short.write_text("def value in range")
    printed, content = evaluated(text=[*files, short])
    measured = content["measured"]
    assert measured["documents"] == measured["windows"] == 7
    assert measured["documents_given"] == 8
    assert measured["documents_too_short"] == ["short.txt"]
    assert measured["positions"] == 7 * measured["window_length"] < measured["positions_given"]
    for row in content["rows"]:
        assert [row[name] for name in ("positions", "windows", "documents")] == [
            measured["positions"],
            7,
            7,
        ]
    share = measured["positions"] / measured["positions_given"]
    assert (
        f"Measured at {measured['positions']} positions, in 7 windows of 7 documents. That is "
        f"{share:.0%} of the {measured['positions_given']} positions of 8 documents given. 1 of "
        f"them left out, shorter than the {measured['window_length']} tokens that are read at "
        "once: short.txt."
    ) in printed
    assert "more left out" not in printed
    printed, _ = evaluated("--positions", 2 * measured["window_length"], text=[*files, short])
    assert "in 2 windows of 2 documents" in printed
    assert "5 more left out for --positions" in printed


def test_one_document_has_no_intervals_and_the_reason_is_told(
    evaluated: Evaluated, calibrated: Calibrated
) -> None:
    printed, content = evaluated(text=calibrated.held_out[:1])
    assert "There are no intervals: they are taken from how documents differ" in printed
    assert "of 1 document." in printed
    row = content["rows"][0]
    assert (row["acceptance_low"], row["documents"]) == (None, 1)


def test_a_speed_up_has_its_spread_and_its_doubt(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = tuple(Times(4, 1.0, slow, drafter_body=0.0, head_weight=0.0) for slow in (1, 2, 4))
    doubt = "Others were at work on this machine (load 9.0): do not trust the times."
    times = Times(4, 1.0, 2.0, drafter_body=0.0, head_weight=0.0, rounds=rounds, doubt=doubt)
    monkeypatch.setattr(pairs, "measure_model_times", lambda *given, **options: times)
    printed, content = evaluated()
    assert doubt in printed
    assert "the middle 80 % of rounds" in printed
    for row in content["rows"]:
        assert row["speed_up"] == pytest.approx((1 + row["accepted_length"]) / 2)
        assert row["speed_up_low"] < 0.8 * row["speed_up"] < 1.2 * row["speed_up_high"]
        assert f"[{row['speed_up_low']:.2f}, {row['speed_up_high']:.2f}]" in printed
        assert row["doubt"] == doubt


def copy_of(target: Path, copy: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    """The target elsewhere, with other weights."""
    shutil.copytree(target, copy)
    weights = load_file(copy / "model.safetensors")
    changed = {name: change(weight).contiguous() for name, weight in weights.items()}
    save_file(changed, copy / "model.safetensors", {"format": "pt"})
    return copy


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_in_another_dtype_is_the_target_calibrated_for(
    desk: Desk, evaluated: Evaluated, dtype: torch.dtype
) -> None:
    copy = copy_of(desk.pair[0], desk.folder / "copy", lambda weight: weight.to(dtype))
    printed, content = evaluated(target=copy)
    assert "target that this was calibrated for" not in printed
    assert content["calibrated_target"] is True


def test_a_target_that_was_trained_on_is_noticed(desk: Desk, evaluated: Evaluated) -> None:
    """A change of a hundredth of the weights' size."""

    def trained(weight: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
        return weight + 0.01 * float(weight.float().std() if weight.dim() > 1 else 0) * noise

    copy = copy_of(desk.pair[0], desk.folder / "copy", trained)
    printed, content = evaluated(target=copy)
    assert f"Not the target that this was calibrated for: the weights in {copy}" in printed
    assert content["calibrated_target"] is False


@pytest.mark.parametrize("said", ["of mine", [float("inf")] * 64])
def test_a_target_that_was_not_recorded_is_not_judged(
    evaluated: Evaluated, spoiled: Path, said: object
) -> None:
    altered(spoiled, lambda settings: settings.update(target_weights=said))
    printed, _ = evaluated(saved=spoiled)
    assert "It was not recorded which target this was calibrated for." in printed


def test_its_acceptance_is_that_of_the_loaded_drafter(
    desk: Desk, evaluated: Evaluated, tiny: ModelPair
) -> None:
    """Read position by position, without any cache or window but the text itself."""
    file = desk.folder / "short.txt"
    file.write_text("def value in range import self\nclass return")
    row = evaluated("--temperature", 0.7, text=[file])[1]["rows"][2]

    model, drafter, _ = load_drafter(desk.calibrated.saved)
    ids = tiny.tokenizer(file.read_text())["input_ids"]
    window, rates = Window(0, ids), []
    with torch.no_grad():
        for context in window.contexts:
            logits = tiny.target(torch.tensor([context])).logits[0, -1:]
            hidden = model.base_model(torch.tensor([context])).last_hidden_state[0, -1:]
            columns = drafter.columns(tiny.drafter_head, hidden, [context])
            q = redistribute(affinity=drafter.affinity, temperature=0.7, **columns)
            rates.append(float(torch.minimum((logits / 0.7).softmax(-1), q).sum()))
    assert row["acceptance"] == pytest.approx(sum(rates) / len(rates), abs=1e-5)
    assert row["head_rows"] == drafter.affinity.draft_size


@pytest.mark.ci
def test_ctrl_c_is_one_line_and_leaves_no_files(desk: Desk) -> None:
    slow = (
        "import sys, time\n"
        "from rdk_cuda.recipes.inputs import pairs\n"
        "from rdk_cuda.__main__ import main\n"
        "from rdk_cuda.recipes.report import evaluation\n"
        "evaluation.measure_acceptance = lambda *given: time.sleep(60)\n"
        "pairs.measure_model_times = lambda *given, **options: print('Now', file=sys.stderr)\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    argv = arguments(desk.calibrated, desk.pair[0], desk.folder / "output")
    process = interruptible.start([sys.executable, "-c", slow, *argv])
    assert process.stderr is not None
    assert process.stderr.readline() == "Now\n"
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, out, errors) == (130, "", "Interrupted.\n")
    assert list((desk.folder / "output").iterdir()) == []


# Bad input.


@pytest.fixture
def spoiled(calibrated: Calibrated, tmp_path: Path) -> Path:
    """A copy of the saved drafter, to be spoiled."""
    return Path(shutil.copytree(calibrated.saved, tmp_path / "saved"))


def altered(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = directory / "calibration.json"
    content = json.loads(file.read_text())
    change(content["settings"])
    file.write_text(json.dumps(content))


def warm(value: object) -> Callable[[Path], None]:
    return lambda saved: altered(saved, lambda settings: settings.update(temperature=value))


def other_target(vocabulary: int, tokens: int) -> Callable[[Path], None]:
    def make(saved: Path) -> None:
        save_model(saved.with_name("other"), hidden=16, seed=1, vocabulary=vocabulary)
        save_tokenizer(saved.with_name("other"), tokens)

    return make


def of_another_format(saved: Path) -> None:
    (saved / "calibration.json").write_text('{"format": "other"}')


def with_a_cut_file(saved: Path) -> None:
    file = saved / "pruned_drafter.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


BROKEN: tuple[Callable[[Path], object], ...] = (
    lambda saved: (saved / "calibration.json").unlink(),
    lambda saved: (saved / "pruned_drafter.safetensors").unlink(),
    of_another_format,
    with_a_cut_file,
)
BAD: list[tuple[Callable[[Path], object], str, str]] = [
    (shutil.rmtree, "", "saved"),
    *((change, "", "saved") for change in BROKEN),
    (str, "--temperature -1", "--temperature: got '-1'; needs a temperature, 0 for greedy"),
    (str, "--temperature 1e-40", "acceptance at temperature 1e-40 is NaN; needs models"),
    (str, "--positions 0", "--positions: got '0'; needs a whole number, at least 1"),
    (str, "--draft-length 400", "tokens; needs at least 402 with --draft-length 400"),
    (str, "--text nowhere.txt", "--text nowhere.txt: No such file or directory"),
    (str, "--text /dev/null", "is empty"),
    (other_target(408, 408), "--target other", "predicts 408 tokens and the drafter 400"),
    (other_target(400, 399), "--target other", "the tokenizers differ in "),
    (
        lambda saved: save_model(saved / "drafter", hidden=12, seed=1),
        "",
        "is [400, 12]; needs [V_t, d] = [400, 8]",
    ),
    (
        lambda saved: saved.with_name("mine").write_text("mine"),
        "--output mine",
        "--output mine: is a file; needs a directory",
    ),
    *(
        (warm(value), "", f"calibration.json: temperature is {value!r}; needs a number")
        for value in ("warm", -1, True)
    ),
]


@pytest.mark.parametrize(("change", "options", "message"), BAD)
def test_bad_input_is_refused_in_one_line_that_names_it(
    desk: Desk, change: Callable[[Path], object], options: str, message: str, spoiled: Path
) -> None:
    desk.patch.chdir(desk.folder)
    change(spoiled)
    before = digests(desk.folder)
    argv = arguments(desk.calibrated, desk.pair[0], Path("output"), *options.split(), saved=spoiled)
    asked = [argv, ["inspect", str(spoiled)]] if change in BROKEN else [argv]
    for answer in (desk.refused(argv) for argv in asked):
        assert message in answer
        assert not re.search("load_drafter|save_drafter", answer)  # words of the command line
    assert digests(desk.folder) == before
