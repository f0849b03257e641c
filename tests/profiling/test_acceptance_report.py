"""The acceptance report goes on where it stopped, and its verdicts are those of its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from profiling import acceptance, acceptance_report, corpora
from profiling.acceptance_parts import Settings
from profiling.acceptance_runs import DEMO, PARTS, SHARP, Run
from profiling.acceptance_verdicts import MET, MISSED, UNKNOWN, Verdict, below_pruned, verdicts
from profiling.corpora import Corpus
from profiling.serving_pair import serving_cost, serving_speed_up
from rdk_cuda.calibration import methods as names
from rdk_cuda.calibration.acceptance import Interval
from rdk_cuda.calibration.material import Options
from rdk_cuda.commands.evaluation_files import Row, evaluation_row, read_evaluation
from rdk_cuda.commands.models import Models, load_models

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
    monkeypatch.setattr(acceptance, "load_models", lambda target, drafter: tiny)

    def run(*arguments: str, settings: Settings = QUICK) -> int:
        return acceptance.main(["--output", str(tmp_path / "report"), *arguments], settings)

    return run


def test_one_command_measures_every_part_and_writes_the_report(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(settings=TINY) == 0
    files = {path.name for path in (tmp_path / "report").iterdir()}
    assert files >= {f"{part}.{kind}" for part in PARTS for kind in ("json", "csv")}
    pictures = {name for name in files if name.endswith(".png")}
    text = (tmp_path / "report.md").read_text()
    assert pictures
    for picture in pictures:
        assert f"](report/{picture})" in text
    assert f"**{UNKNOWN}**" not in text
    assert all(method in text for method in names.METHODS)
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
    text = (tmp_path / "report.md").read_text()
    assert "**Not measured yet:** methods, sparse, temperatures, shift, sizes." in text


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


def test_a_file_that_is_no_part_is_refused_in_one_line(
    command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "virtual.json").write_text("{")
    assert command("--part", "virtual") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


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


def found(parts: dict[str, list[Row]], words: str) -> Verdict:
    (verdict,) = [each for each in verdicts(parts) if words in each.promise]
    return verdict


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.951, MET), (0.95, MET), (0.949, MISSED), (1.02, MET)]
)
def test_a_share_is_met_from_its_target_on(share: float, verdict: str) -> None:
    one = found({"methods": fake(0.25, share)}, "demo pair, 25 % kept, T = 1")
    assert one.verdict == verdict
    assert one.target == "≥ 95 %"
    assert one.measured == f"{100 * share:.1f} %"
    assert one.interval == f"[{100 * share - 2:.0f}, {100 * share + 3:.0f}]"


def test_no_figure_looks_like_a_target_that_it_misses() -> None:
    one = found({"methods": fake(0.25, 0.94999)}, "demo pair, 25 % kept, T = 1")
    assert (one.measured, one.verdict) == ("94.9 %", MISSED)


def test_the_sharp_pair_has_targets_of_its_own() -> None:
    parts = {"sharp": fake(0.25, 0.86, pair=SHARP) + fake(0.0625, 0.79, pair=SHARP)}
    assert found(parts, "sharp pair, 25 % kept, T = 1").verdict == MET
    assert found(parts, "sharp pair, 6.25 % kept, T = 1").verdict == MISSED
    assert found(parts, "sharp pair, 25 % kept, T = 0.7").verdict == UNKNOWN


def test_nothing_that_was_not_measured_is_judged() -> None:
    assert {verdict.verdict for verdict in verdicts({})} == {UNKNOWN}


def test_ending_below_the_pruned_drafter_is_found_wherever_it_is() -> None:
    parts = {
        "methods": fake(0.25, 0.96),
        "shift": fake(0.0625, -0.05, recommended=0.4975, temperature=0.0, corpus="prose"),
    }
    one = found(parts, "nowhere below")
    assert one.verdict == MISSED
    assert one.measured == "1 of 2 below, the worst by 0.0025"
    assert [(low["corpus"], alone["acceptance"]) for low, alone in below_pruned(parts)] == [
        ("prose", 0.5)
    ]


def test_being_nowhere_below_is_a_promise_about_all_parts() -> None:
    everywhere = {part: fake(0.25, 0.0, recommended=0.5) for part in PARTS}
    assert found(everywhere, "nowhere below").verdict == MET
    some = {part: rows for part, rows in everywhere.items() if part != "shift"}
    assert found(some, "nowhere below").verdict == UNKNOWN


def test_too_many_virtual_rows_miss_their_target() -> None:
    sharp = {"sharp": fake(0.25, 0.86, pair=SHARP)}
    assert found({**sharp, "methods": fake(0.25, 0.96)}, "at most so many").verdict == MET
    many = {**sharp, "methods": fake(0.25, 0.96, virtual_rows=65)}
    assert found(many, "at most so many").verdict == MISSED
    assert found(sharp, "at most so many").verdict == UNKNOWN


@pytest.mark.parametrize(("last", "verdict"), [(0.262, MET), (0.20, MISSED)])
def test_first_order_is_judged_by_its_range_over_the_prunings(last: float, verdict: str) -> None:
    values = {0.5: 0.261, 0.25: 0.26, 0.01: last}
    rows = [row(names.FIRST_ORDER, keep, value, -2.0) for keep, value in values.items()]
    assert found({"methods": rows}, "about constant in the pruning, T = 1").verdict == verdict


def test_the_text_says_what_the_rows_say(tmp_path: Path) -> None:
    text = fake_report(tmp_path, {"shift": fake(0.25, -0.05, recommended=0.496, corpus="prose")})
    assert "| code | prose | 1 | virtual+dynamic | 0.496 · -5 % [-7, -2] |" in text
    assert "ends below the pruned drafter here" in text
    assert "| demo | code | prose | 25 % | 1 | 0.5000 | 0.4960 | -5 % [-7, -2] |" in text
    assert "0123456789ab, changed" in text
    assert "| calibrated on code | 384 | 3 | 1,000 | 9 |" in text
    assert "code: 9 from library" in text


def test_what_was_not_measured_is_named(tmp_path: Path) -> None:
    text = fake_report(tmp_path, {})
    assert f"**Not measured yet:** {', '.join(PARTS)}." in text
    assert UNKNOWN in text


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


def test_a_head_at_serving_size_is_as_long_as_its_share_of_128256_rows() -> None:
    assert serving_cost(row(names.FULL, 1.0, 0.7, virtual_rows=0)).rows == 128256
    assert serving_cost(row(names.RECOMMENDED, 0.25, 0.7)).rows == 32064 + 64
    low_rank = serving_cost(row(names.LOW_RANK, 0.25, 0.7, virtual_rows=0, dynamic_columns=0.0))
    assert (low_rank.rows, low_rank.factored_rows, low_rank.rank) == (32064, 96192, 512)


def test_a_smaller_head_is_worth_more_at_the_same_acceptance() -> None:
    full = row(names.FULL, 1.0, 0.7, virtual_rows=0, dynamic_columns=0.0)
    assert serving_speed_up(row(names.PRUNED, 0.25, 0.7)) > serving_speed_up(full) > 1


def test_settings_survive_their_file() -> None:
    for name in PARTS:
        content = TINY.of_part(name)
        assert json.loads(json.dumps(content)) == content
        assert content != Settings().of_part(name)
    assert torch.get_num_threads() == 1
