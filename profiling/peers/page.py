"""The rows of a comparison as a page of Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..commands import page_of
from ..results import Row
from ..tables import figure, table
from .samplers import CAPTURED, OURS

RIGHT, WRONG, MISSING = "right", "WRONG", "missing"
HEADER = (
    "",
    "",
    "µs",
    "10 to 90 %",
    "× ours",
    "host µs",
    "accepted (expected)",
    "peak KB",
    "kept KB",
)


def preamble(row: Row) -> str:
    """What is in the columns, and which rows to trust."""
    return (
        "From the logits of drafter and target to the tokens of a step: K drafts one after the "
        "other, then their verification, on the same inputs in turn. Times are medians with a cold "
        "cache; × ours is the median over rounds of a peer's time over ours. Host µs is until the "
        "calls of a step of ours have returned, with vocabularies so small that there is next to "
        "nothing to compute; captured, a step is one CUDA graph. Memory is that of a "
        f"drafted position: at the peak of a call beyond its inputs ({row['memory']}), and kept "
        "between drafting and verifying, ours with the drafter's logits.\n\n"
        "Each sampler was tested first: the tokens of a step against the target's distribution in "
        f"{row['draws']:,} steps, low and high acceptance, and accepted drafts against their "
        "expectation, there and in the calls that were timed. A right one fails a test with "
        f"probability {row['false_alarm']:g}. {WRONG}: it failed, and its time compares nothing."
    )


def section(rows: Sequence[Row]) -> list[str]:
    """One case."""
    row = rows[0]
    sizes = f"V_t {row['target_size']:,}, V_d {row['draft_size']:,}"
    lines = [
        f"## {row['sampler']}, {sizes}, batch {row['batch']}, K {row['draft_length']}, "
        f"{row['dtype']}, {row['acceptance']} acceptance",
        table(HEADER, (cells(each) for each in rows if each["status"] != MISSING), "llr"),
    ]
    lines += host_share(rows)
    wrong = [f"{each['peer']}: {each['reason']}" for each in rows if each["status"] == WRONG]
    missing = [f"{each['peer']} ({each['reason']})" for each in rows if each["status"] == MISSING]
    if wrong:
        lines.append(f"{WRONG}: {'; '.join(wrong)}.")
    if missing:
        lines.append(f"Missing: {', '.join(missing)}.")
    return lines


def host_share(rows: Sequence[Row]) -> list[str]:
    """Say which share of our time a graph saves; without one, which the host takes by itself."""
    timed = {each["peer"]: each for each in rows if each["status"] != MISSING}
    whole, graph = timed[OURS], timed.get(CAPTURED)
    if graph is not None:
        share, how = 1 - graph["median_us"] / whole["median_us"], "captured, a step does without it"
    elif whole.get("host_us") is not None:
        share, how = whole["host_us"] / whole["median_us"], "the calls take it by themselves"
    else:  # an older result
        return []
    return [f"Of the time of ours {100 * share:.0f} % is the host's: {how}."]


def cells(row: Row) -> list[str]:
    """In the order of `HEADER`."""
    version = f" {row['peer_version']}" if row["module"] not in ("torch", "rdk_cuda") else ""
    return [
        f"{row['peer']}{version}",
        row["status"],
        figure(row["median_us"]),
        f"{figure(row['p10_us'])} to {figure(row['p90_us'])}",
        figure(row["ratio"]),
        "" if row.get("host_us") is None else figure(row["host_us"]),
        f"{row['accepted_mean']:.2f} ({row['accepted_expected']:.2f})",
        figure(row["peak_bytes"] / 1000),
        figure(row["kept_bytes"] / 1000),
    ]


page = partial(page_of, "Sampling a decoding step, compared with others", preamble, "case", section)
