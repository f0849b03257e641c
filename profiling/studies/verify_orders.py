"""What each order of work in `verify` would take on a GPU: a simulation, with its assumptions.

`python -m profiling.studies.verify_orders` prints microseconds of one call by batch, by the chance
that a draft is accepted, and by order, next to the floor: the bytes of the rows that have to be
looked at, at the bandwidth of the memory. No GPU is needed, and none is measured. Ratios of orders
say more than times, whose constants are guesses (`Constants`) until a GPU gives others:
`--block-rate` and its like replace them.

The model is a fluid. A block reads at no more than `block_rate`, and all blocks that read share the
memory's bandwidth evenly; compute hides behind reads. A decision about a position, and the draw of
the last token, take a block fixed times in which it reads nothing. Blocks start at once, as many as
run at once; those beyond wait for one to end. The orders:

split       blocks share a sequence, each a part of the rows of all positions; the last one
            decides them together, and draws (`VerifyLaunch::splits` above 1)
in order    one block a sequence: it reads a row, decides, and goes on until a rejection
plan        what csrc/cuda/verify_plan.cpp chooses of these two
queue       as many blocks as run at once draw (position, sequence, part of a row) from one queue,
            positions first; parts of a sequence that is known to be rejected are skipped. A
            position is decided by whoever comes last, of those who read its parts and of the one
            who has accepted the position before, and with it those behind it that are read
            (csrc/cuda/verify_queue.cuh, on request). To draw an item, and to wait for what is
            known of its sequence and for its first bytes, takes a block a fixed time
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rdk_cuda.cli.arguments import natural
from rdk_cuda.files import write_json

from ..commands import Parser, run_command
from ..machine import now
from ..tables import table

COLUMNS_OF_A_CHUNK, WARPS = 1024, 8
GPUS = {"H200": 4.3e6, "H100": 3.0e6}  # bytes a microsecond that reads get
BATCHES = (1, 8, 64, 131, 256)
ACCEPTANCE = (0.3, 0.8)


@dataclass(frozen=True)
class Constants:
    """Microseconds, and bytes a microsecond."""

    bandwidth: float = GPUS["H200"]
    block_rate: float = 40e3
    decision: float = 3.5
    last_token: float = 3.0
    start: float = 2.5
    item: float = 2.0  # drawn from the queue
    multiprocessors: int = 132
    blocks_each: int = 2

    @property
    def at_once(self) -> int:
        """Blocks that run at the same time."""
        return self.multiprocessors * self.blocks_each


@dataclass(frozen=True)
class Shape:
    """Of a call, and how many drafts of each sequence are accepted."""

    accepted: tuple[int, ...]
    drafts: int = 5
    columns: int = 128256
    element: int = 2

    @property
    def row(self) -> float:
        """Bytes of a target row."""
        return float(self.columns * self.element)

    @property
    def chunks(self) -> int:
        """Of a target row."""
        return -(-self.columns // COLUMNS_OF_A_CHUNK)


# A block's work is a generator of (bytes to read, microseconds in which it then reads nothing).
Work = Iterator[tuple[float, float]]


def finish(constants: Constants, blocks: Sequence[Callable[[], Work]]) -> float:
    """When the last of these blocks ends, started in order, as many at once as run at once."""
    waiting = deque(blocks)
    time = served = 0.0  # bytes that a block which has read from the beginning would have
    reading: list[tuple[float, int]] = []
    resting: list[tuple[float, int]] = []
    works: dict[int, Work] = {}
    rest: dict[int, float] = {}

    def go_on(block: int) -> None:
        step = next(works[block], None)
        if step is None:
            del works[block]
            if waiting:
                begin()
            return
        rest[block] = step[1]
        heapq.heappush(reading, (served + step[0], block))

    def begin() -> None:
        block = len(blocks) - len(waiting)
        works[block] = waiting.popleft()()
        go_on(block)

    for _ in range(min(constants.at_once, len(blocks))):
        begin()
    while reading or resting:
        rate = min(constants.block_rate, constants.bandwidth / max(1, len(reading)))
        read = time + (reading[0][0] - served) / rate if reading else float("inf")
        rested = resting[0][0] if resting else float("inf")
        then = min(read, rested)
        served += (then - time) * rate if reading else 0.0
        time = then
        if rested <= read:
            go_on(heapq.heappop(resting)[1])
        else:
            served = reading[0][0]
            block = heapq.heappop(reading)[1]
            heapq.heappush(resting, (time + rest[block], block))
    return time


def split(constants: Constants, shape: Shape) -> float:
    """Blocks share a sequence."""
    rows = shape.drafts + 1
    wanted = -(-rows * shape.chunks // WARPS)
    splits = max(1, min(wanted, constants.at_once // len(shape.accepted)))
    left = [splits] * len(shape.accepted)

    def block(sequence: int) -> Work:
        yield rows * shape.row / splits, 0.0
        left[sequence] -= 1
        if left[sequence] == 0:
            yield 0.0, constants.decision + constants.last_token

    sequences = range(len(shape.accepted))
    blocks = [partial(block, sequence) for sequence in sequences for _ in range(splits)]
    return constants.start + finish(constants, blocks)


def in_order(constants: Constants, shape: Shape) -> float:
    """A sequence has one block."""

    def block(accepted: int) -> Work:
        for _ in range(accepted + 1):
            yield shape.row, constants.decision
        yield 0.0, constants.last_token

    blocks = [partial(block, accepted) for accepted in shape.accepted]
    return constants.start + finish(constants, blocks)


def plan(constants: Constants, shape: Shape) -> float:
    """What the plan chooses."""
    many = len(shape.accepted) >= constants.multiprocessors
    return (in_order if many else split)(constants, shape)


def queue(constants: Constants, shape: Shape) -> float:
    """One queue for a resident grid, in about as many parts of a position as it has blocks."""
    parts = min(-(-shape.chunks // WARPS), -(-constants.at_once // len(shape.accepted)))
    sequences, positions = range(len(shape.accepted)), range(shape.drafts + 1)
    items = deque((p, sequence) for p in positions for sequence in sequences for _ in range(parts))
    missing = {item: parts + (item[0] > 0) for item in items}  # tickets
    ended: set[int] = set()

    def decide(position: int, sequence: int) -> Work:
        """For as long as this block takes the last ticket."""
        missing[position, sequence] -= 1
        while missing.get((position, sequence)) == 0:
            while missing.get((position + 1, sequence)) == 1:
                position += 1
            yield 0.0, constants.decision
            if shape.accepted[sequence] <= position:
                ended.add(sequence)
                yield 0.0, constants.last_token
                return
            position += 1
            missing[position, sequence] -= 1

    def block() -> Work:
        while items and len(ended) < len(sequences):
            position, sequence = items.popleft()
            yield 0.0, constants.item
            if sequence not in ended:
                yield shape.row / parts, 0.0
                yield from decide(position, sequence)

    count = min(constants.at_once, len(items))
    return constants.start + finish(constants, [block for _ in range(count)])


ORDERS: dict[str, Callable[[Constants, Shape], float]] = {
    "split": split,
    "in order": in_order,
    "plan": plan,
    "queue": queue,
}


def floor(constants: Constants, shape: Shape) -> float:
    """Bytes up to the first rejection, at the memory's bandwidth."""
    rows = sum(accepted + 1 for accepted in shape.accepted)
    return rows * shape.row / constants.bandwidth


def accepted_drafts(batch: int, drafts: int, chance: float, seed: int) -> tuple[int, ...]:
    """Each draft is accepted with this chance, up to the first that is not."""
    generator = random.Random(seed)

    def one() -> int:
        return next((n for n in range(drafts) if generator.random() >= chance), drafts)

    return tuple(one() for _ in range(batch))


def simulate(constants: Constants, batch: int, chance: float, shape: Shape, runs: int) -> Any:
    """A row: means over runs, each with other drafts accepted."""
    shapes = [
        replace(shape, accepted=accepted_drafts(batch, shape.drafts, chance, seed))
        for seed in range(runs)
    ]
    row: dict[str, Any] = {"batch": batch, "acceptance": chance}
    row["floor_us"] = sum(floor(constants, each) for each in shapes) / runs
    for name, order in ORDERS.items():
        row[name] = sum(order(constants, each) for each in shapes) / runs
    return row


def run(options: argparse.Namespace) -> None:
    """Simulate, print and, if asked to, write."""
    names = [field.name for field in fields(Constants) if hasattr(options, field.name)]
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    shape = Shape((), options.drafts, options.columns, options.element)
    rows = []
    for gpu, bandwidth in GPUS.items():
        constants = replace(Constants(bandwidth=bandwidth), **given)
        for batch in options.batches:
            for chance in ACCEPTANCE:
                rows.append({"gpu": gpu, **simulate(constants, batch, chance, shape, options.runs)})
    numbers = ("floor_us", *ORDERS)
    lines = [
        (row["gpu"], str(row["batch"]), str(row["acceptance"]), *(f"{row[n]:.1f}" for n in numbers))
        for row in rows
    ]
    print(table(("GPU", "B", "accepted", "floor", *ORDERS), lines, "l" + "r" * (len(numbers) + 2)))
    if options.output is not None:
        settings = {name: value for name, value in vars(options).items() if name != "output"}
        write_json({"run": now(), **settings, "rows": rows}, options.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = Parser(prog="python -m profiling.studies.verify_orders", description=__doc__)
    made.add_argument("--batches", type=natural, nargs="+", default=list(BATCHES))
    made.add_argument("--drafts", type=natural, default=5, help="K, of every sequence")
    made.add_argument("--columns", type=natural, default=128256, help="V_t")
    made.add_argument("--element", type=natural, default=2, help="bytes of a logit")
    made.add_argument("--runs", type=natural, default=8, help="means are taken over")
    for field in fields(Constants):
        if field.type == "float":
            name = f"--{field.name.replace('_', '-')}"
            made.add_argument(name, type=float, help=f"in place of {field.default}")
    made.add_argument("--output", type=Path, metavar="FILE", help="JSON file to write")
    return run_command(made, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
