"""How the plans launch the operators on an H100, by batch: launches.json, next to this file.

`python -m tests.proof.emulated.launches` writes it. No GPU is asked: plans are called, and how many
blocks run at once follows from the registers and shared memory of the compiled kernels.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rdk_cuda.files import write_json

from .driver_rules import GPUS, resident_blocks
from .emulated_operators import emulator

TABLE = Path(__file__).with_suffix(".json")
ARCHITECTURE = "sm_90a"
BATCHES = (1, 8, 64, 131, 256)
DRAFT_SIZE, TARGET_SIZE, DRAFTS, GATHERED = 32_000, 128_256, 5, 528


def plans_for(plans: ModuleType, batch: int) -> dict[str, dict[str, Any]]:
    """What each operator's plan says for a batch of sequences."""
    machine = GPUS[ARCHITECTURE].machine
    return {
        "draft": plans.plan_draft(machine, batch, DRAFT_SIZE),
        "redistribute": plans.plan_redistribute(machine, batch, DRAFT_SIZE, TARGET_SIZE),
        "verify": plans.plan_verify(
            machine, batch, DRAFTS * batch, DRAFTS, DRAFT_SIZE, TARGET_SIZE
        ),
        "verify_tree": plans.plan_verify_tree(machine, batch, TARGET_SIZE),
        "gather_logits": plans.plan_gather_logits(machine, batch, GATHERED),
    }


def content(plans: ModuleType) -> dict[str, Any]:
    """What the file holds."""
    rows = []
    for batch in BATCHES:
        for operator, plan in plans_for(plans, batch).items():
            shape = plan["threads"], plan["shared_bytes"]
            at_once = resident_blocks(GPUS[ARCHITECTURE], ARCHITECTURE, plan["kernel"], *shape)
            rows.append(
                {
                    "operator": operator,
                    "batch": batch,
                    "blocks": plan["blocks"],
                    "threads": plan["threads"],
                    "at_once": at_once,
                    "cluster": plan["cluster"],
                }
            )
    return {
        "architecture": ARCHITECTURE,
        "draft_size": DRAFT_SIZE,
        "target_size": TARGET_SIZE,
        "drafts": DRAFTS,
        "gathered": GATHERED,
        "rows": rows,
    }


def main() -> int:
    """Write the file; returns the exit code."""
    write_json(content(emulator()), TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
