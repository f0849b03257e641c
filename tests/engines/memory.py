"""How much memory a real vLLM's process takes over 4,000 requests, as one JSON file.

    python -m tests.engines.memory --drafters DIRECTORY --out FILE

In a process each: vLLM alone, with its own speculation, and with our worker. The cache is small, so
that the first requests fill it, and what the allocator keeps of freed memory is given back first.
Some requests have penalties, and each prompt comes again, so that its first tokens are found.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams

from profiling.machine import describe
from rdk_cuda.files import write_json

from .__main__ import SETTINGS
from .drafters import calibrated_drafters
from .engine import VERSION, WORKER, Engine
from .exact import prompts_of

DRAFTER = "virtual-dynamic-6.25"
KINDS = ("vLLM", "vLLM's own speculation", "rdk_cuda")
PARTS, REQUESTS = 10, 400
BLOCKS, LENGTH = 320, 140  # of the cache, and of a prompt, which has a block and more
PENALIZED = {"temperature": 1.0, "repetition_penalty": 1.1, "frequency_penalty": 0.1}


def resident(kind: str, directory: Path) -> dict[str, Any]:
    """MiB after each part of the requests, which are mixed and, with our worker, seeded.

    vLLM alone stops at a seeded request whose prompt is read in parts ("CPU Generator does not use
    offset"), and its own speculation refuses min-p.
    """
    ours, model = kind == "rdk_cuda", None if kind == "vLLM" else directory / "model"
    worker, drafter = (WORKER, directory / DRAFTER) if ours else ("auto", None)
    engine = Engine(model, worker, drafter, num_gpu_blocks_override=BLOCKS)
    own = kind == "vLLM's own speculation"
    settings = [each for each in SETTINGS.values() if not (own and "min_p" in each)]
    settings.append(PENALIZED)
    prompts, found = prompts_of(100, LENGTH), []
    for part in range(PARTS):
        params = [
            SamplingParams(max_tokens=4 + i % 13, seed=i if ours and i % 3 else None, **setting)  # type: ignore[arg-type]
            for i, setting in zip(range(REQUESTS), itertools.cycle(settings), strict=False)
        ]
        engine.tokens([prompts[(part + i) % len(prompts)] for i in range(REQUESTS)], params)
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        found.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1))
    return {"kind": kind, "mib": found, "tokens_found": engine.metric("prefix_cache_hits")}


def main() -> None:
    """Run all of it and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.memory", description=__doc__)
    parser.add_argument("--drafters", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    directory = calibrated_drafters(arguments.drafters)
    rows = []
    for kind in KINDS:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            rows.append(process.submit(resident, kind, directory).result())
        print(rows[-1], flush=True)
    found = {
        "format": "rdk_cuda.vllm-memory",
        **describe(torch.device("cpu")),
        "vllm": VERSION,
        "requests_each": REQUESTS,
        "rows": rows,
    }
    write_json(found, arguments.out)


if __name__ == "__main__":
    main()
