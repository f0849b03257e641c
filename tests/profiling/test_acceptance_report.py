"""The acceptance report goes on where it stopped, and says what its rows say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from examples.demo import corpus
from profiling.studies.acceptance import __main__ as acceptance
from profiling.studies.acceptance.laboratory import Settings
from profiling.studies.acceptance.parts import PARTS, Run
from profiling.studies.acceptance.report import write_report
from rdk_cuda.calibration import methods as names
from rdk_cuda.calibration.material import Options
from rdk_cuda.cli.models import Models, load_models
from rdk_cuda.evaluation.rows import read_evaluation

from ..tiny_models import save_model, save_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


def shrunk(run: Run) -> Run:
    """The same with little text, two prunings, and few rows."""
    positions = None if run.positions is None else 64 + run.positions // 512
    keeps = tuple(keep for keep in run.keeps if keep in (0.25, 0.0625))
    return replace(run, keeps=keeps, positions=positions, virtual=(2, 3)[: len(run.virtual)])


TINY = Settings(
    parts={name: tuple(map(shrunk, runs)) for name, runs in PARTS.items()},
    calibration=128,
    held_out=96,
    window=16,
    memory=64 << 20,
    options=Options(dynamic=8, recent=4, samples=32),
)
QUICK = replace(TINY, parts={name: (Run((0.25,), (1.0,), (names.PRUNED,)),) for name in PARTS})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    save_model(root / "target", hidden=16, seed=1)
    save_tokenizer(root / "target")
    save_model(root / "drafter", hidden=8, seed=2)
    return load_models(root / "target", root / "drafter")


Command = Callable[..., int]


@pytest.fixture
def command(tiny: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    files = {name: getattr(corpus, name)() for name in ("training_files", "held_out_files")}
    monkeypatch.setattr(corpus, "training_files", lambda: files["training_files"][::50])
    monkeypatch.setattr(corpus, "held_out_files", lambda: files["held_out_files"][:6])
    monkeypatch.setattr(acceptance, "load_shipped", lambda: tiny)

    def run(*arguments: str, settings: Settings = QUICK) -> int:
        return acceptance.main(["--output", str(tmp_path / "report"), *arguments], settings)

    return run


@pytest.mark.night
def test_one_command_measures_every_part_and_writes_the_report(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(settings=TINY) == 0
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert files >= {f"{part}.json" for part in PARTS}
    text = (tmp_path / "report" / "report.md").read_text()
    assert all(f"]({name})" in text for name in files if name.endswith(".png"))
    assert "Not measured yet" not in text
    assert all(method in text for run in PARTS["methods"] for method in run.methods)
    content = read_evaluation(tmp_path / "report" / "similarities.json")
    assert content["build_seconds"]
    assert content["settings"] == TINY.of_part("similarities") != Settings().of_part("similarities")
    assert capsys.readouterr().err.count(" s  first-order RDK at ") == 4


def test_finished_parts_are_neither_measured_again_nor_lost_by_an_interruption(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured = []
    measure = acceptance.measure_part

    def counted(name: str, *others: object) -> object:
        if name == "sizes":
            raise KeyboardInterrupt
        measured.append(name)
        return measure(name, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(acceptance, "measure_part", counted)
    assert command("--part", "virtual") == 0
    assert command("--part", "similarities", "--part", "virtual") == 0
    assert measured == ["virtual", "similarities"]
    assert command("--part", "virtual", "--again") == 0
    assert command("--part", "virtual", settings=replace(QUICK, held_out=64)) == 0
    assert measured == ["virtual", "similarities", "virtual", "virtual"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "**Not measured yet:** methods, temperatures, sizes." in text

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert command("--part", "sizes") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted."
    assert command("--part", "similarities", "--part", "sizes") == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "Interrupted. Parts that were finished are kept; the same command goes on with the others."
    )
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_committed_report_is_what_the_results_say(tmp_path: Path) -> None:
    for file in acceptance.RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    committed = (acceptance.RESULTS / "report.md").read_text(encoding="utf-8")
    assert write_report(tmp_path, list(PARTS)).read_text(encoding="utf-8") == committed
    assert "virtual+dynamic is below the pruned drafter in 0 of" in committed

    # The control: other rows give another report, which says where the method is worse.
    content = json.loads((tmp_path / "methods.json").read_text())
    (row,) = [
        row
        for row in content["rows"]
        if (row["method"], row["keep"], row["temperature"]) == (names.RECOMMENDED, 0.25, 0.7)
    ]
    row |= {
        "acceptance": 0.496,
        "recovered": -0.05,
        "recovered_low": -0.07,
        "recovered_high": -0.02,
    }
    (tmp_path / "methods.json").write_text(json.dumps({**content, "dirty": True}))
    text = write_report(tmp_path, list(PARTS)).read_text(encoding="utf-8")
    assert "virtual+dynamic is below the pruned drafter in 1 of" in text
    assert "| code | 25 % | 0.7 | 0.5657 | 0.4960 | -5 % [-7, -2] |" in text
    assert ", changed |" in text
