"""Result files: rows in JSON.

A file has "format": "rdk_cuda.PROGRAM", "format_version": 1 and "rows". A row stands for itself:
what was measured, where, when and at which commit. Rows of several runs may share a file: `run`
tells them apart; `case`, `device_name` and `threads` tell what can be compared. All rows have

    run, date, command          when the run began and the row was there (UTC), and how to repeat it
    load                        of the machine in the last minute, processes that want to run
    device ... dirty            machine, versions, threads, instruction set, and the commit; where
                                git cannot tell, the environment variable RDK_COMMIT can
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rdk_cuda.files import write_json
from rdk_cuda.recipes.errors import InputError

BENCH, FORMAT_VERSION = "bench", 1

# What a comparison of rows of bench cannot do without.
NEEDED = (
    *("case", "median_us", "p10_us", "p90_us", "rounds", "run"),
    *("device", "device_name", "threads", "load", "torch", "commit", "dirty"),
)

Row = dict[str, Any]


class Results:
    """Rows, on disk after each one, whole or not at all.

    Args:
        path: of the file; rows that it has already stay. None keeps rows in memory.
        program: whose rows they are.
    """

    def __init__(self, path: Path | None, program: str) -> None:
        self.path, self.program = path, program
        self.rows: list[Row] = read(path, program) if path is not None and path.exists() else []
        self.own = len(self.rows)
        if path is not None:
            try:
                self.write()
            except OSError as error:
                raise InputError(f"{path}: {error.strerror}; needs a file to write to") from None

    @property
    def new_rows(self) -> list[Row]:
        """The rows of this run."""
        return self.rows[self.own :]

    def append(self, row: Row) -> None:
        """Add a row and write the file."""
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is not None:
            about = {"format": f"rdk_cuda.{self.program}", "format_version": FORMAT_VERSION}
            write_json({**about, "rows": self.rows}, self.path)


def read(path: Path, program: str = BENCH) -> list[Row]:
    """The rows of a result file. Raises InputError where it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: is no result file ({error}); name another one") from None
    if not isinstance(content, dict) or content.get("format") != f"rdk_cuda.{program}":
        raise InputError(f"{path}: is no result file of {program}; name another one")
    if content.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path}: has format version {content.get('format_version')}; "
            f"needs {FORMAT_VERSION}, so name another file"
        )
    rows = content.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: has no list of rows; name another file")
    for number, row in enumerate(rows if program == BENCH else ()):
        if missing := [name for name in NEEDED if name not in row]:
            raise InputError(f"{path}: row {number} lacks {', '.join(missing)}; measure it again")
    return rows


def place(row: Row) -> str:
    """The device, and on a CPU the number of threads."""
    threads = f", {row['threads']} threads" if row["device"] == "cpu" else ""
    return f"{row['device_name']}{threads}"


def comparable(row: Row) -> tuple[Any, ...]:
    """What two rows have to share for their times to be compared."""
    return row["case"], row["device_name"], row["threads"]


def latest(rows: Iterable[Row]) -> list[Row]:
    """The latest of all rows that can be compared with each other, in the order of the first."""
    rows = list(rows)
    newest = {comparable(row): row for row in sorted(rows, key=lambda row: str(row["run"]))}
    return [newest[key] for key in dict.fromkeys(map(comparable, rows))]
