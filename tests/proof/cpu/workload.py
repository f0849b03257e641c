"""Saves results of every operator with 1, 2 and 4 threads.

`python -m tests.proof.cpu.workload FILE`

A process of its own, because the instruction set is chosen once, by `RDK_CPU_CAPABILITY`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda._ops.contract import LIMITS, OPERATORS
from tests import generators
from tests.proof.emulated.workloads import verify
from tests.proof.golden import calls

THREADS = (1, 2, 4)
WIDE = 75_001  # columns: all threads share a row


def few_rows(operator: str, limited: bool) -> tuple[Tensor, ...]:
    """Fewer than threads, of WIDE columns; with limits, and the last without distribution."""
    sizes = {"...": (2,), "B": 2, "N": 4, "M": 4, "V_t": WIDE, "V": WIDE, "W": WIDE}
    given = generators.call(operator, torch.bfloat16, **sizes)
    if limited:
        limits = dict(zip(LIMITS, (WIDE // 9, 0.9, 1e-9), strict=True))
        given |= {n: torch.full_like(given[n], x) for n, x in limits.items() if n in given}
    for name in [name for name in given if name.endswith("temperature")]:
        given[name][..., -1] = torch.nan
    result = getattr(torch.ops.rdk, operator)(**given)
    written = [given[n] for n, rule in OPERATORS[operator].tensors.items() if rule.written]
    return *written, *((result,) if isinstance(result, Tensor) else result)


def direct_pass(method: int) -> tuple[Tensor, ...]:
    return verify(generators.nearly_equal(WIDE, sequences=3).replace(method=method))


CALLS: dict[str, Callable[[], tuple[Tensor, ...]]] = calls.CALLS | {
    **{
        f"few rows of {operator}{', limits' * limited}": partial(few_rows, operator, limited)
        for operator, described in OPERATORS.items()
        for limited in (False, *([True] if "top_k" in described.arguments else []))
    },
    "direct pass of few rows": partial(direct_pass, 0),
    "direct pass of few rows, by block": partial(direct_pass, 1),
}


def main(path: str) -> None:
    """Writes {threads: {name: tensors}}."""
    found: dict[int, dict[str, tuple[Tensor, ...]]] = {}
    for threads in THREADS:
        torch.set_num_threads(threads)
        found[threads] = {name: call() for name, call in CALLS.items()}
    capability = str(rdk_cuda.build_info()["cpu_capability"])
    torch.save({"capability": capability, "results": found}, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
