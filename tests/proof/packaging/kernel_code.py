"""What the hot loops of the kernels are made of: kernel_code.json, next to this file.

`python -m tests.proof.packaging.kernel_code` compiles the kernels for one architecture and
writes it.
"""

from __future__ import annotations

import heapq
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import build_kernels
from rdk_cuda.files import write_json

from .sass import Instruction, instructions, loads_before_use

TABLE = Path(__file__).with_suffix(".json")
ARCH = "90a"
EXPONENTIALS = 32  # of a lane, a chunk
ENDS = ("BRA", "BRX", "EXIT", "RET")


@dataclass(frozen=True)
class Block:
    """Instructions that run one after the other, and where control goes from there."""

    size: int
    waits: bool  # for a copy to land
    exponentials: int
    copies: int
    successors: tuple[int, ...]


def blocks_of(sequence: list[Instruction]) -> list[Block]:
    """The basic blocks of a kernel."""
    begins = [i for i, each in enumerate(sequence) if i == 0 or each.labels]
    begins += [i + 1 for i, each in enumerate(sequence[:-1]) if each.name in ENDS]
    starts = sorted(set(begins))
    of_label = {label: n for n, i in enumerate(starts) for label in sequence[i].labels}
    return [
        _block(sequence[start:end], n, of_label, len(starts))
        for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(sequence)], strict=True))
    ]


def _block(body: list[Instruction], number: int, of_label: dict[str, int], count: int) -> Block:
    last, successors = body[-1], []
    if last.name == "BRA" and (label := re.search(r"`\((\.L_\w+)\)", last.operands)):
        successors.append(of_label[label[1]])
    # A branch may depend on a predicate before it or among its operands, or on diverged lanes.
    chooses = last.guarded or last.code != "BRA" or bool(re.match(r"!?U?P\d", last.operands))
    goes_on = last.name not in ENDS or (chooses and last.name == "BRA") or last.guarded
    if goes_on and number + 1 < count:
        successors.append(number + 1)
    return Block(
        len(body),
        any(each.name == "DEPBAR" for each in body),
        sum(each.code == "MUFU.EX2" for each in body),
        sum(each.name == "LDGSTS" for each in body),
        tuple(successors),
    )


def instructions_a_chunk(sequence: list[Instruction]) -> int | None:
    """How many instructions a warp issues for a whole chunk at temperature 1.

    That is the shortest way from one wait for a copy to the next that copies a chunk and takes the
    exponentials of one; None if there is no such loop.
    """
    copies = max(loads_before_use(sequence, "LDGSTS"), default=0)
    blocks = blocks_of(sequence)
    waits = (number for number, block in enumerate(blocks) if block.waits)
    ways = (_way_round(blocks, start, copies) for start in waits)
    return min((size for size in ways if size is not None), default=None)


def _way_round(blocks: list[Block], start: int, copies: int) -> int | None:
    """Dijkstra's shortest way over (block, exponentials, copies), until it is back."""
    first = blocks[start]
    queue = [(first.size, start, first.exponentials, first.copies)]
    seen: set[tuple[int, int, int]] = set()
    while queue:
        size, number, taken, copied = heapq.heappop(queue)
        if (number, taken, copied) in seen:
            continue
        seen.add((number, taken, copied))
        for other in blocks[number].successors:
            if other == start and taken >= EXPONENTIALS and copied >= copies:
                return size
            block = blocks[other]
            more = min(taken + block.exponentials, EXPONENTIALS), min(copied + block.copies, copies)
            if other != start:
                heapq.heappush(queue, (size + block.size, other, *more))
    return None


def table(codes: dict[str, list[Instruction]]) -> dict[str, dict[str, int]]:
    """For each kernel how long it is and, if it copies chunks ahead, what a chunk takes."""
    rows: dict[str, dict[str, int]] = {}
    for name, sequence in sorted(codes.items()):
        rows[name] = {"instructions": len(sequence)}
        of_chunk = instructions_a_chunk(sequence)
        if of_chunk is not None:
            rows[name]["a_chunk"] = of_chunk
            rows[name]["copies_in_flight"] = max(loads_before_use(sequence, "LDGSTS"))
    return rows


def content(codes: dict[str, list[Instruction]]) -> dict[str, object]:
    """What the file holds."""
    nvcc = build_kernels.nvcc_version()
    return {"nvcc": nvcc, "architecture": f"sm_{ARCH}", "kernels": table(codes)}


def main() -> int:
    """Write the file; returns the exit code."""
    cubins = build_kernels.compile_cubins(build_kernels.ROOT / "build" / "kernels", [ARCH])
    codes = {
        build_kernels.readable(name): sequence
        for cubin in cubins.values()
        for name, sequence in instructions(cubin).items()
    }
    write_json(content(codes), TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
