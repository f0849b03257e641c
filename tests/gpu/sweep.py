"""What compute-sanitizer watches: every kernel, dtype, strategy and path once, on small inputs.

python3 -m tests.gpu.sweep                        nothing is to be found
python3 -m tests.gpu.sweep --planted memcheck     an affinity that leads outside of the logits
python3 -m tests.gpu.sweep --planted initcheck    logits that nobody wrote
python3 -m tests.gpu.sweep --device cpu           a rehearsal
"""

from __future__ import annotations

import argparse
import os

import torch

from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators, tree_generators
from tests.proof.emulated.batches import BATCHES, repeated
from tests.proof.emulated.workloads import WORKLOADS, batch, draft, redistribute, row_limits, verify

from .stand_in import OnDevice, moved

TIMES = 50  # as many sequences and rows as no GPU has multiprocessors


def sweep() -> int:
    """Every call, on the device; how many."""
    calls = 0
    for work in WORKLOADS.values():
        work()
        calls += 1
    for make in BATCHES.values():
        many = repeated(make(), TIMES)
        for given in (many, many.with_stats()):
            verify(given)
            calls += 2
    for dtype in generators.DTYPES:
        few = batch("mixed-2", dtype)
        for given in (few, few.not_aligned(), repeated(few, TIMES)):
            mixed = given.replace(target_logits=given.target_logits.to(torch.bfloat16))
            for call in (draft, redistribute, verify, lambda _, mixed=mixed: verify(mixed)):
                call(given)
                calls += 1
            for call in (draft, redistribute):
                call(given, limits=row_limits(given.draft_logits.shape[0]))
                calls += 1
        walked = tree_generators.trees([9, 0, 20] * TIMES, 3000, dtype=dtype)
        wider = walked.replace(target_logits=generators.in_wider_rows(walked.target_logits))
        for trees in (walked, wider):
            for given in (trees, trees.replace(**row_limits(trees.size))):
                torch.ops.rdk.verify_tree(*given.arguments())
                calls += 1
        hidden = generators.logits(5, 777, dtype=dtype)
        weight = generators.logits(50, 777, seed=1, dtype=dtype)
        for rows in (hidden, generators.in_wider_rows(hidden)):
            torch.ops.rdk.gather_logits(rows, weight, generators.dynamic_tokens(5, 20, 50))
            calls += 1
    return calls


def planted(tool: str, device: torch.device) -> None:
    """One call with an error that the tool must find; the process goes on as if nothing were."""
    affinity = Affinity.intersection(Vocabulary.identity(1024))
    columns = moved([*affinity.by_target, affinity.row_top], device)
    logits = torch.zeros(1, 1024).to(device)
    if tool == "memcheck":
        columns[2] = columns[2] + 2**28  # col_drafts
    else:
        logits = torch.empty(1, 1024, device=device)
    temperature = torch.ones(1).to(device)
    try:
        torch.ops.rdk.redistribute(logits, temperature, *columns)
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        print(f"found by the device: {str(error).splitlines()[0]}", flush=True)
        os._exit(0)  # what the sanitizer found decides, not the broken context


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.sweep")
    parser.add_argument("--planted", choices=["memcheck", "initcheck"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    options = parser.parse_args()
    device = torch.device(options.device, 0)
    if options.planted:
        planted(options.planted, device)
        return
    torch.ops.rdk = OnDevice(torch.ops.rdk, device)
    print(f"{sweep()} calls", flush=True)


if __name__ == "__main__":
    main()
