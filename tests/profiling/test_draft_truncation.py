"""The study of drafting inside the target's top-p."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.studies import draft_truncation
from profiling.studies.acceptance.laboratory import Settings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.night
def test_more_is_accepted_inside_the_same_top_p(tmp_path: Path) -> None:
    """With little text: its intervals are wide, and its figures near those that are committed."""
    output = tmp_path / "rows.json"
    assert draft_truncation.main(["--output", str(output)], Settings(held_out=1344, window=96)) == 0
    found = json.loads(output.read_text())
    committed = json.loads(draft_truncation.RESULT.read_text())
    assert found["command"] == committed["command"]
    settings = [(row["temperature"], row["top_p"]) for row in committed["rows"]]
    assert [(row["temperature"], row["top_p"]) for row in found["rows"]] == settings
    for row, reference in zip(found["rows"], committed["rows"], strict=True):
        plain, inside = row["acceptance"][0], row["acceptance_inside"][0]
        assert row["difference"][0] == pytest.approx(inside - plain, abs=1e-6)
        assert 0 < row["difference"][1] <= row["difference"][0] <= row["difference"][2]
        assert 1 < row["tokens_ratio"][1] < row["tokens_ratio"][2]
        assert plain == pytest.approx(reference["acceptance"][0], abs=0.1)
