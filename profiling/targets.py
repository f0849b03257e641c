"""The figures that the project has set itself, at the shapes of the preset `targets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .cases import PAIR
from .results import Row
from .table import figure


class Target(NamedTuple):
    """A limit, and what was measured."""

    case: str
    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the value keeps to the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def targets_of(row: Row) -> Iterator[Target]:
    """The targets that a row bears on."""
    shape = (row["target_size"], row["draft_size"], row["sampler"])
    if row["operator"] != "gather_logits" and shape != (128256, 32768, "virtual"):
        return
    if row["target_size"] != 128256 or row["columns"] not in (0, 128) or row["stats"] is False:
        return
    yield from (_on_cpu if row["device"] == "cpu" else _on_gpu)(row)


def _on_cpu(row: Row) -> Iterator[Target]:
    operator, case = row["operator"], row["case"]
    if row["batch"] != 8:
        return
    if operator == PAIR and row["draft_length"] == 4:
        if (ratio := _ratio(row, "logsumexp")) is not None:
            yield Target(case, "time / logsumexp of the rows visited", 1 / ratio, 2)
        yield from _faster_than_eager(row, 10)
    if operator == "redistribute":
        yield from _faster_than_eager(row, 3)
    if operator == "gather_logits":
        yield Target(case, "time / reading its rows", row["median_us"] / row["floor_us"], 1.2)


def _on_gpu(row: Row) -> Iterator[Target]:
    operator, batch, case = row["operator"], row["batch"], row["case"]
    if row["dtype"] != "bfloat16":
        return
    microseconds = row["floor_us"] / row["bytes"]  # of a byte
    median, warm = row["median_us"], row["graph_us"] or row["warm_us"]
    if operator == "verify" and row["draft_length"] == 5:
        if batch == 64:
            floor = row["bytes_all"] * microseconds
            yield Target(case, "us, 1.15 x reading all its rows", median, 1.15 * floor)
        if batch == 256:
            floor = row["bytes_visited"] * microseconds
            yield Target(case, "us, 1.3 x the bytes it visits + 5", median, 1.3 * floor + 5)
        if batch == 1:
            yield Target(case, "us warm", warm, 12)
    if operator == "draft":
        yield Target(case, "us, floor + 5", median, row["floor_us"] + 5)
        if batch == 1:
            yield Target(case, "us warm", warm, 7)
    if operator == "gather_logits" and batch == 64:
        yield Target(case, "us, 1.2 x its floor", median, 1.2 * row["floor_us"])
    if operator == "redistribute" and batch == 64:
        yield Target(case, "us, 2 x its floor", median, 2 * row["floor_us"])
    yield from _faster_than_eager(row, 15)


def _ratio(row: Row, peer: str) -> float | None:
    ratio: float | None = row["peers"].get(peer, {}).get("ratio")
    return ratio


def _faster_than_eager(row: Row, times: float) -> Iterator[Target]:
    ratio = _ratio(row, "eager")
    if ratio is not None:
        yield Target(row["case"], "times as fast as eager PyTorch", ratio, times, at_least=True)


def summary(rows: Sequence[Row]) -> str:
    """A line for each target, the missed ones marked; empty where no row bears on any."""
    lines = []
    for target in (target for row in rows for target in targets_of(row)):
        sign = ">=" if target.at_least else "<="
        verdict = "met   " if target.met else "MISSED"
        limits = f"{figure(target.value)} {sign} {figure(target.limit)}"
        lines.append(f"{verdict}  {limits:>18}  {target.what}: {target.case}")
    return "\n".join(["Targets:", *lines]) if lines else ""
