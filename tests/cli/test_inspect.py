"""`python -m rdk_cuda inspect` says what an affinity does, in words that are true."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.__main__ import main
from rdk_cuda.drafter import PrunedDrafter

from .calibrating import refusal
from .conftest import Desk

# Eight target tokens; 5 and 1 are kept; 2 and 6 belong to a virtual token, 0 to another that is
# off; a third one drafts 3, 4 and 6 by a prior; nothing drafts 7.
VOCABULARY = Vocabulary([5, 1], target_size=8)
ROWS = [{5: 1.0}, {1: 0.75, 2: 0.25}, {2: 0.8, 6: 0.2}, {0: 1.0}, {}]


def small() -> Affinity:
    return Affinity.from_rows(
        ROWS,
        spread=torch.tensor([[0.0], [0.0], [0.0], [0.0], [1.0]]),
        prior=torch.tensor([[0.0, 0, 0, 0.5, 0.3, 0, 0.2, 0]]),
        bias=torch.tensor([0.0, 0.0, 0.7, -math.inf, 0.5]),
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    small().save(tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def told(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """What is printed, each line without the spaces that align it."""
    assert main(["inspect", *map(str, argv)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return "\n".join(" ".join(line.split()) for line in captured.out.splitlines())


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    return refusal(capsys, ["inspect", *map(str, argv)])


def test_the_summary_counts_everything(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    answer = told(capsys, file)
    for line in (
        str(file),
        "drafter tokens (V_d) 5",
        "with a target token of their own 1",  # of the two kept ones, one has two entries
        "virtual, without one 3",
        "masked, never drafting 1",
        "target tokens (V_t) 8",
        "drafted by a drafter token of their own 1",
        "drafted by a drafter token that they share 3",
        "drafted by priors alone 2",
        "never drafted 2",
        "entries of S 5",
        "priors (rank R) 1",
    ):
        assert line in answer.splitlines()
    assert "those with one entry are taken for them" in answer


def test_a_calibrated_drafter_knows_its_kept_tokens(desk: Desk) -> None:
    file = desk.folder / "pruned_drafter.safetensors"
    PrunedDrafter(VOCABULARY, small(), torch.ones(5, 4)).save(file)
    (desk.folder / "calibration.json").write_text(
        '{"format": "rdk_cuda.drafter", "format_version": "1", "settings": {}}'
    )
    pytest.importorskip("transformers")
    (desk.folder / "drafter").mkdir()
    answer = told(desk.capsys, desk.folder)
    assert "with a target token of their own 2" in answer
    assert "virtual, without one 2" in answer
    assert "taken for them" not in answer
    file.unlink()
    assert f"{desk.folder} has no {file.name}" in refused(desk.capsys, desk.folder)


def test_bad_files_are_refused_in_one_line(desk: Desk, file: Path) -> None:
    assert "missing: no such file; needs an affinity file" in refused(
        desk.capsys, desk.folder / "missing"
    )
    assert f"{desk.folder} has no drafter; needs the whole directory" in refused(
        desk.capsys, desk.folder
    )
    file.write_bytes(file.read_bytes()[:-8])
    assert f"{file} is not a complete safetensors file" in refused(desk.capsys, file)
    file.write_text("")
    assert f"{file} is not a complete safetensors file" in refused(desk.capsys, file)
