"""The comparison with the library's assisted generation, here on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", minversion="5.17")
pytest.importorskip("sklearn")
from examples.demo.corpus import calibration_files
from profiling.studies import assisted

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = [
    ("generate", 1),
    ("generate", 2),
    ("assistant_model", 1),
    ("assistant_model, K = 4", 1),
    ("ours: full drafter", 1),
    ("ours: full drafter", 2),
    ("ours: virtual tokens", 1),
    ("ours: virtual tokens", 2),
    ("ours: virtual+dynamic", 1),
    ("ours: virtual+dynamic", 2),
]


@pytest.fixture
def quick(tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Arguments of a run of a few seconds."""
    monkeypatch.setattr(assisted, "load_shipped", lambda: tiny)
    monkeypatch.setattr(assisted, "training_files", lambda: calibration_files()[:4])
    return ["--quick", "--output", str(tmp_path / "results")]


def test_every_way_is_measured_and_the_greedy_text_compared(
    quick: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert assisted.main(quick) == 0
    content = json.loads((tmp_path / "results" / "results.json").read_text())
    rows = content["rows"]
    assert [(row["way"], row["batch"]) for row in rows] == WAYS * 2
    assert {row["temperature"] for row in rows} == {0.0, 0.7}
    for row in rows:
        assert row["tokens"] == 2 * 6
        assert row["target_passes"] / row["tokens"] == row["target_passes_per_token"] <= 1
        assert (row["same_greedy_text"] is None) == (row["temperature"] > 0)
        assert row["same_greedy_text"] is None or row["same_greedy_text"]["different"] == 0
        assert (row["first_draft_acceptance"] is None) == (not row["way"].startswith("ours"))
        if row["way"] == "generate":
            assert row["target_passes_per_token"] == 1
            assert row["times_plain"] == 1
    assert content["transformers"]
    page = (tmp_path / "results" / "table.md").read_text()
    assert page.count("| the same |") == len(WAYS)
    assert capsys.readouterr().out.strip() == page.strip()


def test_another_text_is_told(quick: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run_way = assisted.run_way

    def spoiled(way: Any, *arguments: Any, **options: Any) -> Any:
        run = run_way(way, *arguments, **options)
        if way.name == "ours: virtual tokens":
            run.tokens[0][-1] = (run.tokens[0][-1] + 1) % 400
        return run

    monkeypatch.setattr(assisted, "run_way", spoiled)
    monkeypatch.setattr(assisted, "QUICK", replace(assisted.QUICK, temperatures=(0.0,)))
    assert assisted.main(quick) == 0
    page = (Path(quick[-1]) / "table.md").read_text()
    assert page.count("| 1 of 2 DIFFER |") == 2
    assert page.count("| the same |") == len(WAYS) - 2


def test_the_library_s_assistant_is_left_as_it_was(tiny: Any) -> None:
    own = tiny.drafter.generation_config
    with assisted.fixed_drafts(tiny.drafter, 3):
        assert tiny.drafter.generation_config.num_assistant_tokens == 3
        assert own.num_assistant_tokens != 3
    assert tiny.drafter.generation_config is own


def test_an_interruption_writes_nothing(
    quick: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt  # not the signal: who runs the tests may ignore it

    monkeypatch.setattr(assisted, "run_way", interrupted)
    assert assisted.main(quick) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Interrupted: nothing was written."
    assert not Path(quick[-1]).exists()
