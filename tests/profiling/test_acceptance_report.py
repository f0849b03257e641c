"""The acceptance report goes on where it stopped, and its verdicts are those of its rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from profiling.studies.acceptance import __main__ as acceptance
from profiling.studies.acceptance import corpora
from profiling.studies.acceptance import report as acceptance_report
from profiling.studies.acceptance.corpora import Corpus
from profiling.studies.acceptance.laboratory import Settings
from profiling.studies.acceptance.parts import DEMO, PARTS, Run
from rdk_cuda.calibration import methods as names
from rdk_cuda.calibration.material import Options
from rdk_cuda.cli.models import Models, load_models
from rdk_cuda.evaluation.acceptance import Interval
from rdk_cuda.evaluation.rows import Row, evaluation_row, read_evaluation

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


@pytest.fixture(scope="module")
def texts() -> dict[str, Corpus]:
    """A little of each corpus."""
    return {
        corpus.name: replace(
            corpus, calibration=corpus.calibration[::50], held_out=corpus.held_out[:6]
        )
        for corpus in (corpora.code(), corpora.prose())
    }


Command = Callable[..., int]


@pytest.fixture
def command(
    tiny: Models, texts: dict[str, Corpus], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setattr(corpora, "code", lambda: texts["code"])
    monkeypatch.setattr(corpora, "prose", lambda: texts["prose"])
    monkeypatch.setattr(acceptance, "load_shipped", lambda: tiny)

    def run(*arguments: str, settings: Settings = QUICK) -> int:
        return acceptance.main(["--output", str(tmp_path / "report"), *arguments], settings)

    return run


def test_one_command_measures_every_part_and_writes_the_report(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(settings=TINY) == 0
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert files >= {f"{part}.json" for part in PARTS}
    pictures = {name for name in files if name.endswith(".png")}
    text = (tmp_path / "report" / "report.md").read_text()
    assert pictures
    for picture in pictures:
        assert f"]({picture})" in text
    assert "Not measured yet" not in text
    assert all(method in text for run in PARTS["methods"] for method in run.methods)
    content = read_evaluation(tmp_path / "report" / "shift.json")
    shifts = {(row["calibrated_on"], row["corpus"]) for row in content["rows"]}
    assert shifts == {("code", "prose"), ("prose", "prose"), ("prose", "code")}
    assert content["build_seconds"]
    assert capsys.readouterr().err.count(" s  first-order RDK at ") == 4


def test_finished_parts_are_not_measured_again(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []
    measure = acceptance.measure_part

    def counted(name: str, *others: object) -> object:
        measured.append(name)
        return measure(name, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(acceptance, "measure_part", counted)
    assert command("--part", "virtual") == 0
    times = (tmp_path / "report" / acceptance.TIMES).read_text()
    assert command("--part", "sharp", "--part", "virtual") == 0
    assert measured == ["virtual", "sharp"]
    assert (tmp_path / "report" / acceptance.TIMES).read_text() == times
    assert command("--part", "virtual", "--again") == 0
    assert command("--part", "virtual", settings=replace(QUICK, held_out=64)) == 0
    assert measured == ["virtual", "sharp", "virtual", "virtual"]
    text = (tmp_path / "report" / "report.md").read_text()
    assert "**Not measured yet:** methods, similarities, temperatures, shift, sizes." in text


def test_an_interruption_keeps_finished_parts_and_leaves_nothing_half_written(
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command("--part", "virtual") == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(acceptance, "measure_part", interrupted)
    assert command() == 130
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "Interrupted: the same command goes on with the unfinished part."


def row(
    method: str, keep: float, acceptance: float, share: float | None = None, **others: object
) -> Row:
    recovered = None if share is None else Interval(share, share - 0.02, share + 0.03)
    facts: Row = {
        **{"pair": DEMO, "corpus": "code", "calibrated_on": "code", "temperature": 1.0},
        **{"head_rows": 164, "virtual_rows": 64, "dynamic_columns": 57.5, "speed_up": 1.25},
        **{"draft_length": 4, "accepted_length": 2.0, "head_bytes": 1e6, "head_flops": 5e5},
        **others,
    }
    around = Interval(acceptance, acceptance - 0.01, acceptance + 0.01)
    return evaluation_row(around, recovered, method=method, keep=keep, **facts)


def fake(keep: float, share: float, recommended: float = 0.6, **others: object) -> list[Row]:
    return [
        row(names.FULL, 1.0, 0.7, **others),
        row(names.PRUNED, keep, 0.5, **others),
        row(names.RECOMMENDED, keep, recommended, share, **others),
    ]


def test_the_text_says_what_the_rows_say(tmp_path: Path) -> None:
    text = fake_report(tmp_path, {"shift": fake(0.25, -0.05, recommended=0.496, corpus="prose")})
    assert "| code | prose | 1 | virtual+dynamic | 0.496 · -5 % [-7, -2] |" in text
    assert "virtual+dynamic is below the pruned drafter in 1 of 1 places" in text
    assert "| demo | code | prose | 25 % | 1 | 0.5000 | 0.4960 | -5 % [-7, -2] |" in text
    assert "0123456789ab, changed" in text
    assert "| calibrated on code | 384 | 3 | 1,000 | 9 |" in text
    assert "code: 9 from library" in text


def fake_report(folder: Path, parts: dict[str, list[Row]]) -> str:
    (folder / "report").mkdir()
    about = {
        **{"run": "2026-01-01T00:00:00Z", "commit": "0123456789abcdef", "dirty": True},
        **{"device_name": "a processor", "torch": "2", "threads": 1, "seconds": 90.0},
    }
    texts = {
        "calibrated on code": {
            **{"positions": 384, "documents": 3, "all_documents": 9, "all_tokens": 1000}
        },
        "sources of code": {"library": 9},
    }
    for name, rows in parts.items():
        acceptance.write_evaluation(
            rows, {**about, "texts": texts}, folder / "report" / f"{name}.json"
        )
    written = acceptance_report.write_report(folder / "report", list(PARTS))
    return written.read_text()


def test_settings_survive_their_file() -> None:
    for name in PARTS:
        content = TINY.of_part(name)
        assert json.loads(json.dumps(content)) == content
        assert content != Settings().of_part(name)
    assert torch.get_num_threads() == 1


def test_a_method_stands_next_to_the_pruned_drafter_that_it_is_compared_with(
    tmp_path: Path,
) -> None:
    """Parts are calibrated on different texts, so each has a pruned drafter of its own."""
    committed = Path(__file__).parents[2] / "profiling" / "results" / "acceptance"
    for name in ("methods", "similarities"):
        shutil.copy(committed / f"{name}.json", tmp_path)
    text = acceptance_report.write_report(tmp_path, list(PARTS)).read_text(encoding="utf-8")
    for name in ("methods", "similarities"):
        rows = read_evaluation(committed / f"{name}.json")["rows"]
        words, lines, columns = acceptance_report.SECTIONS[name]
        table = acceptance_report.pivot(rows, lines, columns)
        assert f"{words}\n\n{table}" in text
