"""A decoder's timeline as two tables: what each range took, and what each kernel.

Both nsys_report.py and torch_profile.py make `Timeline`s; the ranges are those of
`rdk_cuda.functional.ranges`.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdk_cuda.functional.ranges import LEGEND

from ..tables import table

__all__ = ["Kernel", "Span", "Timeline", "data", "kernel_rows", "range_rows", "report"]

STEP = "step"
OUTSIDE = "(outside)"
MOST_KERNELS = 25


@dataclass(frozen=True)
class Span:
    """A range of one thread, in nanoseconds."""

    name: str
    start: int
    end: int
    thread: int
    payload: int | None = None


@dataclass(frozen=True)
class Kernel:
    """Work that was launched: on a GPU a kernel, on a CPU an operator, which launches itself.

    Attributes:
        start, end: of the work, in nanoseconds.
        launched, thread: when and where it was launched.
    """

    name: str
    start: int
    end: int
    launched: int
    thread: int


@dataclass(frozen=True)
class Timeline:
    """All of a recording.

    Attributes:
        worker: what kernels run on, "GPU" or "CPU".
    """

    spans: Sequence[Span]
    kernels: Sequence[Kernel]
    worker: str


def range_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """A row for each name: calls, time of the CPU, work launched inside, share of the steps.

    Kernels count for every range around their launch, so that "step" has all of its parts'.
    """
    steps = sum(span.end - span.start for span in timeline.spans if span.name == STEP)
    work: defaultdict[str, int] = defaultdict(int)
    launches: defaultdict[str, int] = defaultdict(int)
    for kernel, around in zip(timeline.kernels, _around(timeline), strict=True):
        for name in {span.name for span in around}:
            work[name] += kernel.end - kernel.start
            launches[name] += 1
    rows = []
    for name in dict.fromkeys((*LEGEND, *(span.name for span in timeline.spans))):
        spans = [span for span in timeline.spans if span.name == name]
        if not spans:
            continue
        times = [span.end - span.start for span in spans]
        payloads = [span.payload for span in spans if span.payload is not None]
        rows.append(
            {
                "range": name,
                "calls": len(spans),
                "payload_mean": statistics.fmean(payloads) if payloads else None,
                "total_ms": sum(times) / 1e6,
                "median_us": statistics.median(times) / 1e3,
                "share_of_steps": sum(times) / steps if steps else None,
                "launches": launches[name],
                "work_ms": work[name] / 1e6,
            }
        )
    return rows


def kernel_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """A row for each name and innermost range, those that take longest first."""
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for kernel, around in zip(timeline.kernels, _around(timeline), strict=True):
        inside = around[-1].name if around else OUTSIDE
        groups[kernel.name, inside].append(kernel.end - kernel.start)
    whole = sum(map(sum, groups.values()))
    rows = [
        {
            "kernel": name,
            "range": inside,
            "calls": len(times),
            "total_ms": sum(times) / 1e6,
            "median_us": statistics.median(times) / 1e3,
            "shortest_us": min(times) / 1e3,
            "longest_us": max(times) / 1e3,
            "share": sum(times) / whole if whole else None,
        }
        for (name, inside), times in groups.items()
    ]
    return sorted(rows, key=lambda row: -row["total_ms"])


def report(timeline: Timeline) -> str:
    """Both tables, in Markdown."""
    kernels, worker = kernel_rows(timeline), timeline.worker
    kind = "kernel" if worker == "GPU" else "operator"
    ranges = [
        (
            *(row["range"], str(row["calls"])),
            "" if row["payload_mean"] is None else f"{row['payload_mean']:.1f}",
            *(f"{row['total_ms']:.2f}", f"{row['median_us']:.1f}", percent(row["share_of_steps"])),
            *(str(row["launches"]), f"{row['work_ms']:.2f}"),
        )
        for row in range_rows(timeline)
    ]
    work = [
        (
            *(f"`{row['kernel']}`", row["range"], str(row["calls"])),
            *(f"{row['total_ms']:.3f}", f"{row['median_us']:.1f}"),
            f"{row['shortest_us']:.1f} .. {row['longest_us']:.1f}",
            percent(row["share"]),
        )
        for row in kernels[:MOST_KERNELS]
    ]
    range_titles = (
        *("range", "calls", "mean payload", "total ms", "median us", "of the steps"),
        *(f"{kind}s", f"{worker} ms"),
    )
    kernel_titles = (
        *(kind, "launched in", "calls", "total ms", "median us", "range us"),
        f"of all {worker} time",
    )
    more = len(kernels) - MOST_KERNELS
    rest = f"\n\n{more} more took less time each." if more > 0 else ""
    return f"{table(range_titles, ranges)}\n\n{table(kernel_titles, work)}{rest}"


def data(timeline: Timeline, about: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of both tables, for a file."""
    rows = {"ranges": range_rows(timeline), "kernels": kernel_rows(timeline)}
    return {"format": "rdk_cuda.timeline", "format_version": 1, **about, **rows}


def percent(share: float | None) -> str:
    """A share; nothing where there is none."""
    return "" if share is None else f"{100 * share:.1f} %"


def _around(timeline: Timeline) -> Iterable[list[Span]]:
    """For each kernel the ranges around its launch on its thread, outermost first."""
    by_thread: defaultdict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        by_thread[span.thread].append(span)
    nested = {thread: _Nesting(spans) for thread, spans in by_thread.items()}
    for kernel in timeline.kernels:
        nesting = nested.get(kernel.thread)
        yield [] if nesting is None else nesting.around(kernel.launched)


class _Nesting:
    """Ranges of one thread, which nest."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = sorted(spans, key=lambda span: (span.start, -span.end))
        self.starts = [span.start for span in self.spans]
        self.parents: list[int] = []
        open_spans: list[int] = []
        for place, span in enumerate(self.spans):
            while open_spans and self.spans[open_spans[-1]].end <= span.start:
                open_spans.pop()
            self.parents.append(open_spans[-1] if open_spans else -1)
            open_spans.append(place)

    def around(self, moment: int) -> list[Span]:
        """Those that hold a moment, outermost first."""
        place = bisect_right(self.starts, moment) - 1
        found = []
        while place >= 0:
            if self.spans[place].end > moment:
                found.append(self.spans[place])
            place = self.parents[place]
        return found[::-1]
