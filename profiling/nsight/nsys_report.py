"""`python -m profiling.nsight.nsys_report FILE.sqlite`: ranges and kernels of nsys.

The file is what `nsys export --type sqlite` writes; nsys.sh records and exports one. Its tables are
described in the Nsight Systems documentation, "SQLite Schema Reference"; they are there only if
something was recorded for them, and columns come and go between versions, so both are looked up.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdk_cuda.cli.errors import InputError
from rdk_cuda.files import write_json

from ..commands import Parser, run_command
from .timeline import Kernel, Span, Timeline, data, report

__all__ = ["main", "read_timeline"]

DOMAIN = "rdk"
# ENUM_NSYS_EVENT_TYPE
MARK, PUSH_POP, START_END, DOMAIN_CREATE = 34, 59, 60, 75
PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
KERNELS, LAUNCHES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
PROCESS = ~0xFFFFFF  # of a global thread id: what is left without the thread's own 24 bits


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    command = Parser(prog="python -m profiling.nsight.nsys_report", description=__doc__)
    command.add_argument("file", type=Path, help="what nsys export --type sqlite wrote")
    command.add_argument("--json", type=Path, metavar="FILE", help="write the rows too")
    return run_command(command, run, arguments)


def run(options: argparse.Namespace) -> None:
    """Read, write, print."""
    timeline = read_timeline(options.file)
    if options.json:
        write_json(data(timeline, {}), options.json)
    print(report(timeline))


def read_timeline(path: Path) -> Timeline:
    """The ranges of our domain, and all kernels.

    Raises:
        InputError: no such file, no export of nsys, or none of our ranges in it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; needs what nsys export --type sqlite writes")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            export = Export.of(database)
            return Timeline(list(export.spans()), list(export.kernels()), "GPU")
    except sqlite3.DatabaseError as error:
        raise InputError(f"{path}: cannot be read as an export of nsys ({error})") from None


@dataclass(frozen=True)
class Export:
    """An open file; its tables and their columns."""

    database: sqlite3.Connection
    columns: dict[str, set[str]]

    @classmethod
    def of(cls, database: sqlite3.Connection) -> Export:
        """What is in a file."""
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        columns = {
            name: {row[1] for row in database.execute(f'PRAGMA table_info("{name}")')}
            for (name,) in names
        }
        return cls(database, columns)

    def spans(self) -> Iterator[Span]:
        """Ranges and marks of our domain."""
        self.require("NVTX_EVENTS", "start", "end", "eventType", "text", "domainId", "globalTid")
        domains = self.events("domainId", DOMAIN_CREATE, f"name = '{DOMAIN}'")
        if not domains:
            raise InputError(
                f"it has no NVTX domain {DOMAIN!r}: was nvtx installed, and did the decoder run "
                "while nsys recorded?"
            )
        payloads = [name for name in PAYLOADS if name in self.columns["NVTX_EVENTS"]]
        payload = f"COALESCE({', '.join([*payloads, 'NULL', 'NULL'])})"
        ours = f"domainId IN ({', '.join(str(int(row[0])) for row in domains)})"
        kinds = f"{MARK}, {PUSH_POP}, {START_END}"
        found = self.events(f'name, start, "end", globalTid, {payload}', kinds, ours)
        for name, start, end, thread, value in found:
            yield Span(name, start, start if end is None else end, thread, value)

    def events(self, wanted: str, kinds: int | str, condition: str) -> list[tuple[Any, ...]]:
        """Of NVTX_EVENTS; `name` is its text, wherever that is."""
        text, joined = "text", ""
        if "textId" in self.columns["NVTX_EVENTS"] and "StringIds" in self.columns:
            text, joined = "COALESCE(text, value)", "LEFT JOIN StringIds ON StringIds.id = textId"
        query = (
            f"SELECT {wanted} FROM (SELECT *, {text} AS name FROM NVTX_EVENTS {joined}) "
            f"WHERE eventType IN ({kinds}) AND {condition} ORDER BY start"
        )
        return self.database.execute(query).fetchall()

    def kernels(self) -> Iterator[Kernel]:
        """All kernels, with the call that launched them; none where nothing ran on a GPU."""
        if KERNELS not in self.columns:
            return
        self.require(KERNELS, "start", "end", "shortName", "correlationId", "globalPid")
        self.require(LAUNCHES, "start", "correlationId", "globalTid")
        query = (
            f'SELECT value, k.start, k."end", r.start, r.globalTid FROM {KERNELS} AS k '
            "JOIN StringIds ON StringIds.id = k.shortName "
            f"LEFT JOIN {LAUNCHES} AS r ON r.correlationId = k.correlationId "
            f"AND (r.globalTid & {PROCESS}) = (k.globalPid & {PROCESS}) ORDER BY k.start"
        )
        for name, start, end, launched, thread in self.database.execute(query):
            known = launched is not None
            yield Kernel(name, start, end, launched if known else start, thread if known else -1)

    def require(self, table: str, *columns: str) -> None:
        """Refuse an export without them."""
        missing = [name for name in columns if name not in self.columns.get(table, ())]
        if missing:
            raise InputError(
                f"table {table} has no {', '.join(missing)}; needs an export of nsys 2022.1 or "
                "later, recorded with --trace=cuda,nvtx"
            )


if __name__ == "__main__":
    raise SystemExit(main())
