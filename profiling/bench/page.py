"""Rows as a table, and what its columns mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from ..commands import busy
from ..results import Row, place
from ..tables import figure, table
from .cases import OVERLAP, PAIR
from .measure import PEERS

COLUMNS = (
    *("operator", "sampler", "V_t", "V_d", "B", "K", "C", "dtype", "target", "T"),
    *("acceptance", "accepted"),
    *("MB", "floor us", "median us", "p10 .. p90", "warm us", "floor / time"),
    *(f"x {peer}" for peer in PEERS),
)
LEFT = {"operator", "sampler", "dtype", "target", "acceptance"}


def page(rows: Sequence[Row]) -> str:
    """What the columns are, and a line for each row; empty columns are left out."""
    cells = [row_cells(row) for row in rows]
    shown = [any(line[place] for line in cells) for place in range(len(COLUMNS))]
    titles, *lines = [list(compress(line, shown)) for line in (COLUMNS, *cells)]
    alignment = "".join("l" if title in LEFT else "r" for title in titles)
    return f"{caption(rows)}\n\n{table(titles, lines, alignment)}"


def row_cells(row: Row) -> list[str]:
    """In the order of `COLUMNS`."""
    operator = row["operator"] + ("" if row["stats"] in (True, None) else ", no stats")
    warm = row["graph_us"] if row["graph_us"] is not None else row["warm_us"]
    ratios = [row["peers"].get(peer, {}).get("ratio") for peer in PEERS]
    sizes = ("sampler", "target_size", "draft_size", "batch", "draft_length", "columns", "dtype")
    return [
        operator,
        *(str(row[name] or "") for name in sizes),
        row.get("target_dtype") or "",
        f"{row['temperature']:g}" if row.get("temperature", 1) != 1 else "",
        row["acceptance"] or "",
        "" if row["accepted_mean"] is None else f"{row['accepted_mean']:.2f}",
        *(figure(each) for each in (row["bytes"] / 1e6, row["floor_us"], row["median_us"])),
        f"{figure(row['p10_us'])} .. {figure(row['p90_us'])}",
        figure(warm),
        f"{row['share_of_floor']:.0%}",
        *("" if ratio is None else figure(ratio) for ratio in ratios),
    ]


def caption(rows: Sequence[Row]) -> str:
    """What the columns mean and where the figures come from."""
    row = rows[-1]
    names = {"read": "reading (a sum)", "copy": "a copy, read and write counted"}
    used = dict.fromkeys((each["bandwidth"], each["bandwidth_gb_s"]) for each in rows)
    speeds = "; ".join(f"{names[kind]}: {speed:.0f} GB/s" for kind, speed in used)
    capability = f", {row['capability']}" if row["device"] == "cpu" else ""
    lines = [
        f"{place(row)}, torch {row['torch']}{capability}",
        f"Floor: bytes over bandwidth measured in this run ({speeds}).",
        "Times: medians with a cold cache. warm us: directly after the same call; at batch 1 on a",
        "GPU, in a CUDA graph. x peer: the peer's time over ours, on the same inputs in turn.",
        *busy(rows),
    ]
    if any(each["operator"] == PAIR for each in rows):
        lines.append(f"{PAIR}: K calls of draft, one of verify.")
    for each in rows:
        if each["operator"] == OVERLAP:
            peaks = {"ours": each, **each["peers"]}
            said = [
                f"{name} {one['peak_mb']:.0f}" for name, one in peaks.items() if "peak_mb" in one
            ]
            lines.append(f"Peak of torch's allocator, {each['dtype']}, MB: {', '.join(said)}.")
    skipped = {
        f"{peer}: {entry['skipped']}"
        for each in rows
        for peer, entry in each["peers"].items()
        if "skipped" in entry
    }
    return "\n".join([*lines, *(f"Not measured, {reason}." for reason in sorted(skipped))])
