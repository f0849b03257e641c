"""Rows as a table in plain text."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from itertools import compress

from rdk_cuda.calibration.timing import others_at_work

from ..results import Row
from ..tables import figure
from .cases import PAIR

COLUMNS = (
    "operator", "sampler", "V_t", "V_d", "B", "K", "C", "dtype", "acceptance", "accepted",
    "MB", "floor us", "median us", "p10 .. p90", "warm us", "floor / time",
    "x eager", "x sparse", "x compiled",
)  # fmt: skip
LEFT = {"operator", "sampler", "dtype", "acceptance"}


def table(rows: Sequence[Row]) -> str:
    """The figures of rows, one a line; columns that nobody has are left out."""
    cells = [row_cells(row) for row in rows]
    shown = [any(line[place] for line in cells) for place in range(len(COLUMNS))]
    titles, *lines = [list(compress(line, shown)) for line in (COLUMNS, *cells)]
    return aligned(titles, lines, LEFT)


def aligned(titles: Sequence[str], lines: Iterable[Sequence[str]], left: Container[str]) -> str:
    """Columns under their titles, to the right but for those of `left`."""
    everything = [titles, *lines]
    widths = [max(map(len, column)) for column in zip(*everything, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for title, cell, width in zip(titles, line, widths, strict=True)
        ).rstrip()
        for line in everything
    )


def row_cells(row: Row) -> list[str]:
    """In the order of `COLUMNS`."""
    operator = row["operator"] + ("" if row["stats"] in (True, None) else ", no stats")
    warm = row["graph_us"] if row["graph_us"] is not None else row["warm_us"]
    return [
        operator,
        row["sampler"] or "",
        *(str(row[name] or "") for name in ("target_size", "draft_size", "batch")),
        *(str(row[name] or "") for name in ("draft_length", "columns")),
        row["dtype"],
        row["acceptance"] or "",
        "" if row["accepted_mean"] is None else f"{row['accepted_mean']:.2f}",
        figure(row["bytes"] / 1e6),
        figure(row["floor_us"]),
        figure(row["median_us"]),
        f"{figure(row['p10_us'])} .. {figure(row['p90_us'])}",
        figure(warm),
        f"{row['share_of_floor']:.0%}",
        *(ratio(row, peer) for peer in ("eager", "sparse", "compiled")),
    ]


def ratio(row: Row, peer: str) -> str:
    """How many times as long the peer takes; nothing where it was not measured."""
    value = row["peers"].get(peer, {}).get("ratio")
    return "" if value is None else figure(value)


def caption(rows: Sequence[Row]) -> str:
    """What the columns mean and where the figures come from."""
    row = rows[-1]
    names = {"read": "reading (a sum)", "copy": "a copy, read and write counted"}
    used = dict.fromkeys((each["bandwidth"], each["bandwidth_gb_s"]) for each in rows)
    speeds = "; ".join(f"{names[kind]}: {speed:.0f} GB/s" for kind, speed in used)
    where = f"{row['device_name']}, torch {row['torch']}"
    if row["device"] == "cpu":
        where += f", {row['threads']} threads, {row['capability']}"
    lines = [
        where,
        f"Floor: bytes over bandwidth measured in this run ({speeds}).",
        "Times: medians with a cold cache. warm us: directly after the same call; at batch 1 on a",
        "GPU, in a CUDA graph. x peer: the peer's time over ours, on the same inputs in turn.",
    ]
    if warning := others_at_work(max(each["load"] for each in rows), row["threads"]):
        lines.append(warning)
    if any(each["operator"] == PAIR for each in rows):
        lines.append(f"{PAIR}: K calls of draft, one of verify.")
    skipped = {
        f"{peer}: {entry['skipped']}"
        for each in rows
        for peer, entry in each["peers"].items()
        if "skipped" in entry
    }
    return "\n".join([*lines, *(f"Not measured, {reason}." for reason in sorted(skipped))])
