"""Result files: rows in JSON.

The JSON file has "format": "rdk_cuda.bench", "format_version": 1, "rows" and "growth" (fits, see
growth.py). A row, with all of `FIELDS`, stands for itself: what was measured, where, when and at
which commit. Rows of several runs may share a file: `run` tells them apart; `case`, `device_name`
and `threads` tell what can be compared.

    run, date, command          when the run began and the row was there (UTC), and how to repeat it
    case                        operator and shape in one string
    operator ... dtype          the attributes of `cases.Case`, null where an operator has none,
                                and rank and nnz of its affinity
    accepted_mean               accepted drafts of a sequence
    visited_rows                target rows up to the first rejections, mean of a call
    bytes_visited, bytes_all    by formula (traffic.py), with those rows and with all target rows
    bytes                       the one of them that the strategy used has to read
    bandwidth, bandwidth_gb_s   measured in the run: "read" (a sum) or "copy" (counted twice)
    floor_us                    bytes over bandwidth
    median_us, p10_us, p90_us   cold: nothing in the last-level cache
    rounds, share_of_floor      how many of them; floor over time, median of the rounds
    warm_us, graph_us           directly after the same call; in a CUDA graph (batch 1)
    peers                       by name: median_us, p10_us, p90_us, and `ratio`, their time over
                                ours, median of the rounds; or `skipped`, why not
    load                        of the machine in the last minute, processes that want to run
    device ... dirty            machine, versions, threads, instruction set, and the commit; where
                                git cannot tell, the environment variable RDK_COMMIT can
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rdk_cuda.commands.files import write_whole

BENCH, FORMAT_VERSION = "bench", 1

FIELDS = (
    *("case", "operator", "sampler", "acceptance", "stats", "target_size", "draft_size", "batch"),
    *("draft_length", "columns", "hidden_size", "rank", "nnz", "dtype"),
    *("accepted_mean", "visited_rows", "bytes_visited", "bytes_all", "bytes"),
    *("bandwidth", "bandwidth_gb_s", "floor_us", "median_us", "p10_us", "p90_us", "rounds"),
    *("share_of_floor", "warm_us", "graph_us", "peers", "run", "date", "command"),
    *(
        "device",
        "device_name",
        "threads",
        "multiprocessors",
        "load",
        "capability",
        "version",
        "torch",
        "cuda",
        "driver",
    ),
    *("commit", "dirty"),
)

# What reports cannot do without.
NEEDED = (
    *("case", "operator", "dtype", "bytes", "bandwidth", "bandwidth_gb_s", "floor_us"),
    *("median_us", "p10_us", "p90_us", "rounds", "share_of_floor", "run", "command"),
    *("device", "device_name", "threads", "load", "torch", "commit", "dirty"),
)

Row = dict[str, Any]


class ResultError(ValueError):
    """A file that results cannot go to; one sentence."""


class Results:
    """Rows, on disk after each one, whole or not at all.

    Args:
        path: of the JSON file; rows that it has already stay. None keeps rows in memory.
        program: whose rows they are, in the file's "format"; only those of bench have growth.
    """

    def __init__(self, path: Path | None, *, program: str = BENCH) -> None:
        self.path = path
        self.content: dict[str, Any] = {
            "format": format_of(program),
            "format_version": FORMAT_VERSION,
            "rows": [],
        }
        if program == BENCH:
            self.content["growth"] = []
        if path is not None and path.exists():
            self.content = read(path, program)
        self.own = len(self.rows)
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self.write()
            except OSError as error:
                raise ResultError(f"{path}: {error.strerror}; needs a file to write to") from None

    @property
    def rows(self) -> list[Row]:
        """All rows of the file."""
        rows: list[Row] = self.content["rows"]
        return rows

    @property
    def new_rows(self) -> list[Row]:
        """Those of this run."""
        return self.rows[self.own :]

    def append(self, row: Row) -> None:
        """Add a row and write the file."""
        self.rows.append(row)
        self.write()

    def append_growth(self, fit: Row) -> None:
        """Add a fitted exponent (growth.py) and write the file."""
        growth: list[Row] = self.content["growth"]
        growth.append(fit)
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        text = json.dumps(self.content, indent=1, allow_nan=False)
        write_whole(self.path, lambda beside: beside.write_text(f"{text}\n", encoding="utf-8"))


def format_of(program: str) -> str:
    """What a result file says that it is."""
    return f"rdk_cuda.{program}"


def read(path: Path, program: str = BENCH) -> dict[str, Any]:
    """The content of a result file. Raises ResultError where it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultError(f"{path}: is no result file ({error}); name another one") from None
    if not isinstance(content, dict) or content.get("format") != format_of(program):
        raise ResultError(f"{path}: is no result file of {program}; name another one")
    if content.get("format_version") != FORMAT_VERSION:
        raise ResultError(
            f"{path}: has format version {content.get('format_version')}; "
            f"needs {FORMAT_VERSION}, so name another file"
        )
    rows = content.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ResultError(f"{path}: has no list of rows; name another file")
    for number, row in enumerate(rows if program == BENCH else ()):
        if missing := [name for name in NEEDED if name not in row]:
            raise ResultError(f"{path}: row {number} lacks {', '.join(missing)}; measure it again")
    return content


def comparable(row: Row) -> tuple[Any, ...]:
    """What two rows have to share for their times to be compared."""
    return row["case"], row["device_name"], row["threads"]


def latest(rows: Iterable[Row]) -> list[Row]:
    """Of rows that can be compared the one of the latest run, in the order of the first."""
    rows = list(rows)
    newest = {comparable(row): row for row in sorted(rows, key=lambda row: str(row["run"]))}
    return [newest[key] for key in dict.fromkeys(map(comparable, rows))]
