"""Tables of ranges and kernels from files as `nsys export --type sqlite` writes them.

The tables and columns are those of the "SQLite Schema Reference" in the Nsight Systems
documentation, cut to what is read and a few that are not.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from profiling.nsight import nsys_report
from profiling.nsight.timeline import kernel_rows, range_rows
from rdk_cuda.cli.errors import InputError

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE ENUM_NSYS_EVENT_TYPE (id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT);
CREATE TABLE NVTX_EVENTS (
    start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
    textId INTEGER, domainId INTEGER, uint64Value INTEGER, int64Value INTEGER, doubleValue REAL,
    uint32Value INTEGER, int32Value INTEGER, floatValue REAL, jsonTextId INTEGER, jsonText TEXT,
    binaryData TEXT
);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (
    start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER
);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
    start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL,
    registersPerThread INTEGER NOT NULL, graphNodeId INTEGER
);
"""
PID, OTHER_PID = 7 << 24, 8 << 24
THREAD, OTHER_THREAD = PID | 70, PID | 71
MARK, PUSH_POP, DOMAIN_CREATE = 34, 59, 75
OURS, THEIRS = 1, 2


class Recorder:
    """Writes an export."""

    def __init__(self, path: Path, schema: str = SCHEMA) -> None:
        self.path = path
        self.database = sqlite3.connect(path)
        self.database.executescript(schema)
        self.strings: dict[str, int] = {}
        self.launches = 0

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.commit()
        self.database.close()

    def string(self, text: str) -> int:
        if text not in self.strings:
            self.strings[text] = len(self.strings) + 1
            self.insert("StringIds", id=self.strings[text], value=text)
        return self.strings[text]

    def insert(self, table: str, **row: Any) -> None:
        names = ", ".join(f'"{name}"' for name in row)
        places = ", ".join("?" * len(row))
        values = tuple(row.values())
        self.database.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", values)

    def domain(self, number: int, name: str) -> None:
        self.nvtx(DOMAIN_CREATE, 0, None, text=name, domainId=number)

    def nvtx(self, kind: int, start: int, end: int | None, **row: Any) -> None:
        full = {"globalTid": THREAD, "domainId": OURS, **row}
        self.insert("NVTX_EVENTS", start=start, end=end, eventType=kind, **full)

    def kernel(self, name: str, launched: int, start: int, end: int, thread: int = THREAD) -> None:
        self.launches += 1
        self.insert(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=launched, end=launched + 5, eventClass=0,
            globalTid=thread, correlationId=self.launches, nameId=self.string("cudaLaunchKernel"),
            returnValue=0,
        )  # fmt: skip
        self.insert(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=0, contextId=1, streamId=7,
            correlationId=self.launches, globalPid=thread & ~0xFFFFFF,
            demangledName=self.string(f"void {name}<float>"), shortName=self.string(name),
            registersPerThread=64,
        )  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Two steps on one thread; the kernels run later than they are launched, and out of turn."""
    path = tmp_path / "decoding.sqlite"
    with Recorder(path) as to:
        to.domain(OURS, "rdk")
        to.domain(THEIRS, "cuBLAS")
        for begin in (1_000, 101_000):
            to.nvtx(PUSH_POP, begin, begin + 90_000, text="step", int64Value=4)
            to.nvtx(PUSH_POP, begin + 1_000, begin + 21_000, textId=to.string("draft"))
            to.nvtx(PUSH_POP, begin + 30_000, begin + 80_000, text="verify", uint64Value=12)
            to.nvtx(MARK, begin + 85_000, None, text="accepted", int64Value=begin // 1000)
            to.nvtx(PUSH_POP, begin, begin + 90_000, text="gemm", domainId=THEIRS)
            to.kernel("draft_kernel", begin + 2_000, begin + 40_000, begin + 43_000)
            to.kernel("verify_kernel", begin + 31_000, begin + 95_000, begin + 99_000)
            to.kernel("verify_kernel", begin + 32_000, begin + 99_000, begin + 99_500)
            to.kernel("elsewhere", begin + 33_000, begin + 50_000, begin + 51_000, OTHER_THREAD)
        to.kernel("before", 10, 20, 30)
        # The same correlation id in another process.
        to.launches = 0
        to.kernel("another", 32_000, 60_000, 61_000, OTHER_PID | 1)
    return path


def test_a_range_has_its_calls_its_times_and_its_payload(export: Path) -> None:
    rows = {row["range"]: row for row in range_rows(nsys_report.read_timeline(export))}
    assert list(rows) == ["step", "draft", "verify", "accepted"]  # not cuBLAS' own
    step, verify = rows["step"], rows["verify"]
    assert (step["calls"], step["payload_mean"], step["total_ms"]) == (2, 4, 0.18)
    assert (verify["median_us"], verify["payload_mean"]) == (50, 12)
    assert verify["share_of_steps"] == pytest.approx(100 / 180)
    assert (rows["draft"]["payload_mean"], rows["draft"]["share_of_steps"]) == (
        None,
        pytest.approx(40 / 180),
    )
    assert (rows["accepted"]["payload_mean"], rows["accepted"]["total_ms"]) == (51, 0)


def test_kernels_belong_to_the_ranges_around_their_launch(export: Path) -> None:
    """Neither to those around their own time, nor to ranges of other threads or processes."""
    timeline = nsys_report.read_timeline(export)
    rows = {row["range"]: row for row in range_rows(timeline)}
    assert (rows["draft"]["launches"], rows["draft"]["work_ms"]) == (2, 0.006)
    assert (rows["verify"]["launches"], rows["verify"]["work_ms"]) == (4, 0.009)
    assert (rows["step"]["launches"], rows["step"]["work_ms"]) == (6, 0.015)
    inside = {(row["kernel"], row["range"]): row for row in kernel_rows(timeline)}
    assert set(inside) == {
        ("draft_kernel", "draft"),
        ("verify_kernel", "verify"),
        ("elsewhere", "(outside)"),
        ("before", "(outside)"),
        ("another", "(outside)"),
    }
    verify = inside["verify_kernel", "verify"]
    assert (verify["calls"], verify["shortest_us"], verify["longest_us"]) == (4, 0.5, 4)
    assert sum(row["share"] for row in inside.values()) == pytest.approx(1)


def test_the_command_prints_tables_and_writes_the_rows(
    export: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nsys_report.main([str(export), "--json", str(tmp_path / "rows.json")]) == 0
    printed = capsys.readouterr().out
    assert "| verify | 2 | 12.0 | 0.10 | 50.0 | 55.6 % | 4 | 0.01 |" in printed
    assert "| `draft_kernel` | draft | 2 | 0.006 | 3.0 | 3.0 .. 3.0 |" in printed
    content = json.loads((tmp_path / "rows.json").read_text())
    assert [row["range"] for row in content["ranges"]] == ["step", "draft", "verify", "accepted"]


def without_column(schema: str, name: str) -> str:
    return schema.replace(f"{name} INTEGER,", "")


@pytest.mark.parametrize(
    ("schema", "needed"),
    [
        ("CREATE TABLE StringIds (id INTEGER, value TEXT);", "NVTX_EVENTS has no start, end"),
        (without_column(SCHEMA, "domainId"), "table NVTX_EVENTS has no domainId"),
    ],
)
def test_an_export_without_what_is_read_is_refused_by_name(
    tmp_path: Path, schema: str, needed: str
) -> None:
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(schema)
    with pytest.raises(InputError, match=needed):
        nsys_report.read_timeline(path)


def test_a_recording_without_our_domain_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder(tmp_path / "x.sqlite") as to:
        to.domain(THEIRS, "cuBLAS")
    assert nsys_report.main([str(tmp_path / "x.sqlite")]) == 2
    assert "no NVTX domain 'rdk': was nvtx installed" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"no database", b"SQLite format 3\0" + b"x" * 5000])
def test_what_is_no_export_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.sqlite"
    if content is not None:
        path.write_bytes(content)
    assert nsys_report.main([str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m profiling.nsight.nsys_report: {path}: ")
