"""What is known of the CUDA kernels without a GPU: their code, and a simulation."""

from __future__ import annotations

import json
from typing import Any

from ..tables import table
from .results import RESULTS, ROOT, Link, content, paragraph

CODE = "tests/packaging/kernel_code.json"
REGISTERS = "tests/packaging/kernel_resources.json"
LAUNCHES = "tests/emulated/launches.json"
ORDERS = "verify-orders/simulated.json"


def recorded(file: str) -> dict[str, Any]:
    """What tests hold the compiler to."""
    found: dict[str, Any] = json.loads((ROOT / file).read_text(encoding="utf-8"))
    return found


def code_table(link: Link) -> str:
    """docs/benchmarks.md"""
    code, used = recorded(CODE), recorded(REGISTERS)
    arch = code["architecture"]
    lines = [
        [
            f"`{name}`",
            used["kernels"][name][arch].split()[0],
            f"{row['instructions']:,}",
            str(row.get("a_chunk", "")),
            str(row.get("copies_in_flight", "")),
        ]
        for name, row in code["kernels"].items()
    ]
    titles = ["kernel", "registers", "instructions", "for a chunk", "copies in flight"]
    return "\n\n".join(
        [
            paragraph(
                f"The kernels as nvcc {code['nvcc']} compiles them for {arch}: registers, the",
                "length of their code and, where rows are copied ahead of their use, the",
                "instructions that a warp issues for a chunk of 1024 columns at temperature 1, and",
                "the copies of 512 bytes that it has under way for it",
                f"({link('code', CODE)}, made by `python -m tests.packaging.kernel_code`;",
                f"{link('registers', REGISTERS)} for every architecture):",
            ),
            table(titles, lines, "lr"),
        ]
    )


def launches_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = recorded(LAUNCHES)
    batches = sorted({row["batch"] for row in found["rows"]})
    operators = dict.fromkeys(row["operator"] for row in found["rows"])
    of = {(row["operator"], row["batch"]): row for row in found["rows"]}
    lines = [
        [
            f"`{operator}`",
            str(of[operator, batches[0]]["threads"]),
            *(_blocks(of[operator, batch]) for batch in batches),
        ]
        for operator in operators
    ]
    titles = ["operator", "threads at 1", *(f"batch {batch}" for batch in batches)]
    return "\n\n".join(
        [
            paragraph(
                "Blocks of a launch on an H100 by the number of sequences, the waves in which they",
                "run and, where they are in clusters, the blocks of one, by the plans of",
                f"{found['architecture']}: V_d {found['draft_size']:,},",
                f"V_t {found['target_size']:,}, K = {found['drafts']}, {found['gathered']}",
                f"gathered tokens a row ({link('data', LAUNCHES)}, made by",
                "`python -m tests.emulated.launches`):",
            ),
            table(titles, lines, "lr"),
        ]
    )


def _blocks(row: dict[str, Any]) -> str:
    of_a_cluster = f", {row['cluster']} each" if row["cluster"] > 1 else ""
    return f"{row['blocks']:,} in {-(-row['blocks'] // row['at_once'])}{of_a_cluster}"


def orders_table(link: Link) -> str:
    """docs/benchmarks.md"""
    found = content(ORDERS)
    orders = ("split", "in order", "plan", "queue")
    lines = [
        [
            row["gpu"],
            str(row["batch"]),
            f"{row['acceptance']:g}",
            *(f"{row[name]:.0f}" for name in ("floor_us", *orders)),
        ]
        for row in found["rows"]
    ]
    titles = ["GPU", "batch", "accepted", "floor", *orders]
    return "\n\n".join(
        [
            paragraph(
                "Simulated, not measured: microseconds of a call of `verify` by the share of",
                f"drafts that is accepted, K = {found['drafts']}, V_t {found['columns']:,}, and",
                "the time that the bytes alone take",
                f"({link('data', f'{RESULTS}/{ORDERS}')}, made by",
                "`python -m profiling.studies.verify_orders`):",
            ),
            table(titles, lines, "llrr"),
        ]
    )
