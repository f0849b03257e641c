"""A table and a sentence for each kernel from files as `ncu --page raw --csv` writes them.

No GPU run has given a file yet: the layout is that of the documentation, a line of titles, a line
of units, a line for each launch, and lines that begin with == around them.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from profiling.nsight import ncu_report
from profiling.nsight.ncu_report import METRICS, STALL, STALLS, Launch, bound
from rdk_cuda.cli.errors import InputError

TITLES = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
          "Block Size", "Grid Size", "Device", "CC")  # fmt: skip
UNITS = {
    METRICS["duration_us"]: "nsecond",
    METRICS["dram_mb"]: "byte",
    METRICS["dram_percent"]: "%",
    METRICS["registers"]: "register/thread",
}


def written(path: Path, *kernels: dict[str, str]) -> Path:
    metrics = [*METRICS.values(), *map(STALL.format, STALLS)]
    text = io.StringIO()
    to = csv.writer(text, quoting=csv.QUOTE_ALL)
    to.writerow([*TITLES, *metrics])
    to.writerow([*[""] * len(TITLES), *(UNITS.get(metric, "") for metric in metrics)])
    for number, kernel in enumerate(kernels):
        facts = (number, 1234, "python3", "host", kernel["name"], 1, 7, "(256, 1, 1)",
                 "(132, 1, 1)", 0, "9.0")  # fmt: skip
        to.writerow([*facts, *(kernel.get(metric, "n/a") for metric in metrics)])
    noise = '==PROF== Profiling "verify_kernel" - 0: 0%....50%....100% - 9 passes'
    path.write_text(f"==PROF== Connected to process 1234\n{noise}\n{text.getvalue()}==PROF== end\n")
    return path


VERIFY = {
    "name": "void rdk::verify_kernel<rdk::BFloat16Bits>(rdk::VerifyLaunch)",
    METRICS["duration_us"]: "24,512",
    METRICS["dram_percent"]: "87.5",
    METRICS["dram_mb"]: "98,500,000",
    METRICS["registers"]: "64",
    STALL.format("long_scoreboard"): "7.5",
    STALL.format("barrier"): "0.25",
}
DRAFT = {"name": "draft_kernel", METRICS["duration_us"]: "4000", METRICS["dram_percent"]: "20"}


def test_figures_come_in_one_unit_and_what_was_not_measured_stays_empty(tmp_path: Path) -> None:
    verify, draft = ncu_report.read_launches(written(tmp_path / "k.csv", VERIFY, DRAFT))
    assert verify.figures["duration_us"] == pytest.approx(24.512)
    assert verify.figures["dram_mb"] == pytest.approx(98.5)
    assert (verify.figures["registers"], verify.blocks) == (64, "(132, 1, 1)")
    assert list(verify.stalls.items()) == [("long_scoreboard", 7.5), ("barrier", 0.25)]
    assert (draft.figures["registers"], draft.stalls) == (None, {})


def launch_with(**figures: float) -> Launch:
    return Launch("k", "", "", {**dict.fromkeys(METRICS), **figures}, {"long_scoreboard": 7.0})


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"dram_percent": 88, "l2_percent": 70}, "Memory: DRAM is busy 88 %"),
        ({"dram_percent": 30, "l2_percent": 75}, "L2 cache: busy 75 %"),
        ({"dram_percent": 61, "issue_percent": 84}, "Instructions: 84 %"),
        ({"dram_percent": 20, "duration_us": 4}, "Latency: 4.0 us, too short"),
        (
            {"dram_percent": 40, "duration_us": 40, "occupancy_percent": 25},
            "with 25 % of the warps",
        ),
    ],
)
def test_a_sentence_says_what_bounds_a_kernel(figures: dict[str, float], words: str) -> None:
    sentence = bound(launch_with(**figures))
    assert words in sentence
    assert sentence.endswith("; warps wait for global memory most.")


def test_the_command_names_launches_by_their_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = tmp_path / "cases.json"
    rows = [{"case": "verify B=64", "operator": "verify"}, {"case": "draft", "operator": "draft"}]
    cases.write_text(json.dumps({"commit": "abc", "cases": rows}))
    file, output = written(tmp_path / "k.csv", VERIFY, DRAFT), tmp_path / "rows.json"
    assert ncu_report.main([str(file), "--cases", str(cases), "--json", str(output)]) == 0
    assert "| verify B=64 | 24.51 | 87.5 | 98.5 |" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert content["commit"] == "abc"
    assert content["rows"][0]["bound"].startswith("Memory: DRAM is busy 88 %")

    rows.reverse()
    cases.write_text(json.dumps({"cases": rows}))
    assert ncu_report.main([str(file), "--cases", str(cases)]) == 2
    assert "draft was launched where ncu saw void rdk::verify" in capsys.readouterr().err
    cases.write_text(json.dumps({"cases": rows[:1]}))
    assert ncu_report.main([str(file), "--cases", str(cases)]) == 2
    assert "has 1 cases, but 2 were profiled" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("", "no line of titles"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "ERR_NVGPUCTRPERM"),
        ('"ID","Kernel Name"\n"",""\n', "no kernel was profiled"),
        ('"ID","Kernel Name"\n', "no kernel was profiled"),
    ],
)
def test_a_file_without_kernels_is_refused_with_what_ncu_said(
    tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "k.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=words):
        ncu_report.read_launches(path)
