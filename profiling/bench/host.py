"""How long the host takes for a step, with a vocabulary so small that the work is nothing.

Each call stands beside its *floor*: an operator of the same schema, made of torch's stable ABI,
too, that takes the arguments apart and allocates results of one element.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import cpp_extension
from torch.utils._python_dispatch import TorchDispatchMode

import rdk_cuda
from rdk_cuda.functional import StepRows

from ..commands import origin
from ..machine import now
from ..results import Row
from ..tables import figure, table

PLACES, TARGET_SIZE = 5, 64
CALLS = 200  # in a row, of which a round takes the mean
FLOORED = "draft", "verify", "draft_step", "verify_step"
COLUMNS = "call", "µs", "its floor, µs", "× its floor", "dispatcher calls"

Call = Callable[[], object]


def host_rows(rounds: int, seconds: float, columns: Row) -> Iterator[Row]:
    """Rows of a step's calls, all timed in turn.

    Args:
        rounds, seconds: of timing, at most.
        columns: that all rows have in common.
    """
    floors = compiled_floors()
    calls = calls_of_a_step(floors)
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds * len(calls)
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > end:
            break
        for name, (call, _) in calls.items():
            times[name].append(mean_time(call))
    for name, (call, of_floor) in calls.items():
        if not name.endswith("floor"):
            floor = sum(
                count * statistics.median(times[f"{each} floor"]) for each, count in of_floor
            )
            median = statistics.median(times[name])
            yield columns | {
                "date": now(),
                "load": os.getloadavg()[0],
                "case": f"host, {name}",
                "call": name,
                "draft_length": PLACES,
                "rounds": len(times[name]),
                "median_us": median * 1e6,
                "floor_us": floor * 1e6,
                "ratio": median / floor,
                "dispatched": dispatched(call),
            }


def mean_time(call: Call) -> float:
    """Of calls in a row, in seconds."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def calls_of_a_step(floors: Any) -> dict[str, tuple[Call, list[tuple[str, int]]]]:
    """The calls by name, and of which floors each is made, how often."""
    affinity = rdk_cuda.Affinity.intersection(
        rdk_cuda.Vocabulary(torch.arange(TARGET_SIZE // 2), TARGET_SIZE)
    )
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(PLACES, 1, TARGET_SIZE // 2, generator=random).unbind()
    target = torch.randn(1, PLACES + 1, TARGET_SIZE, generator=random)
    temperature, seeds, positions = torch.ones(1), torch.tensor([3]), torch.tensor([17])
    keys = rdk_cuda.step_keys(seeds, positions)
    rows = StepRows(affinity, 1, PLACES)

    def drafted(rows: StepRows | None = None) -> list[rdk_cuda.Draft]:
        own: dict[str, Any] = {"seeds": seeds, "positions": positions, "rows": rows}
        drafts = [rdk_cuda.draft(logits[0], affinity, temperature, **own)]
        for row in logits[1:]:
            drafts.append(rdk_cuda.draft(row, affinity, after=drafts[-1]))
        return drafts

    kept, others = (StepRows(affinity, 1, PLACES) for _ in range(2))
    drafts, (before, *_) = drafted(kept), drafted(others)
    joined = rdk_cuda.Draft.join(drafts)
    assert joined.logits is not None
    assert joined.stats is not None
    given = {
        "draft": (logits[0], temperature, keys, positions, *affinity.by_draft),
        "draft_step": (
            logits[0],
            *kept.memory,
            0,
            temperature,
            seeds,
            positions,
            *affinity.by_draft,
        ),
        "verify": (
            target[0],
            joined.logits[0],
            joined.stats[0].contiguous(),
            None,
            joined.tokens[0].contiguous(),
            torch.tensor([0, PLACES], dtype=torch.int32),
            *(temperature, temperature, keys, positions),
            *affinity.by_target,
            PLACES,
        ),
        "verify_step": (
            *(target, kept.logits[:, :PLACES].contiguous()),
            *(kept.stats[:, :PLACES].contiguous(), joined.tokens.contiguous()),
            *(temperature, temperature, keys, positions),
            *affinity.by_target,
        ),
    }

    def after() -> None:
        others.drafted = 1  # as if it were the second place again
        rdk_cuda.draft(logits[1], affinity, after=before)

    def one_by_one() -> None:
        torch.ops.rdk.step_keys(seeds, positions)
        for row in logits:
            torch.ops.rdk.draft(row, *given["draft"][1:])
        torch.ops.rdk.verify(*given["verify"])

    def step(rows: StepRows | None = None) -> None:
        rdk_cuda.verify(target, drafted(rows), affinity, temperature)

    of_rows = [("draft_step", PLACES), ("verify_step", 1)]
    calls: dict[str, tuple[Call, list[tuple[str, int]]]] = {}
    for name in FLOORED:
        calls[f"{name} floor"] = partial(getattr(floors, name), *given[name]), []
        operator = partial(getattr(torch.ops.rdk, name), *given[name])
        calls[f"torch.ops.rdk.{name}"] = operator, [(name, 1)]
    return calls | {
        "rdk_cuda.draft, after=, rows given": (after, [("draft_step", 1)]),
        "rdk_cuda.verify, rows given": (
            lambda: rdk_cuda.verify(target, drafts, affinity, temperature),
            [("verify_step", 1)],
        ),
        "a step by torch.ops": (one_by_one, [("draft", PLACES), ("verify", 1)]),
        "a step by rdk_cuda": (step, of_rows),
        "a step by rdk_cuda, rows given": (lambda: step(rows), of_rows),
    }


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def dispatched(call: Call) -> int:
    """How many operators a call calls."""
    calls = _Calls()
    with calls:
        call()
    return calls.count


def compiled_floors() -> Any:
    """`torch.ops.rdk_floor`, compiled from the schemas of our operators: half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "floors.cpp")
        source.write_text(
            "#include <torch/csrc/stable/library.h>\n#include <torch/csrc/stable/ops.h>\n"
            "#include <torch/csrc/stable/tensor.h>\n#include <optional>\n#include <vector>\n"
            "using torch::stable::Tensor;\n" + "".join(map(floor_of, FLOORED)),
            "utf-8",
        )
        print("compiling the floors", file=sys.stderr)
        cpp_extension.load(
            "rdk_floor",
            [str(source)],
            extra_cflags=["-O3", "-DTORCH_TARGET_VERSION=0x020b000000000000"],
            build_directory=folder,
            is_python_module=False,
        )
    return torch.ops.rdk_floor


def floor_of(name: str) -> str:
    """C++ of an operator that has this one's schema, and does nothing."""
    schema = str(getattr(torch.ops.rdk, name).default._schema)
    signature = schema.removeprefix("rdk::")
    of = getattr(torch.ops.rdk, name).default._schema
    kinds = {"Tensor": "const Tensor&", "Optional[Tensor]": "const std::optional<Tensor>&"}
    arguments = ", ".join(
        f"{kinds.get(str(each.type), 'int64_t')} {each.name}" for each in of.arguments
    )
    first = of.arguments[0].name
    result = f"torch::stable::new_empty({first}, std::vector<int64_t>{{1}})"
    several = len(of.returns) > 1
    returned = ", ".join([result] * len(of.returns))
    kind = f"std::tuple<{', '.join(['Tensor'] * len(of.returns))}>" if several else "Tensor"
    body = f"return {{{returned}}};" if several else f"return {returned};"
    return (
        f"{kind} floor_{name}({arguments}) {{ {body} }}\n"
        f'STABLE_TORCH_LIBRARY_FRAGMENT(rdk_floor, m) {{ m.def("{signature}"); }}\n'
        f"STABLE_TORCH_LIBRARY_IMPL(rdk_floor, CPU, m) "
        f'{{ m.impl("{name}", TORCH_BOX(&floor_{name})); }}\n'
    )


def summary(rows: Sequence[Row]) -> str:
    """Rows as a table."""
    return f"{origin(rows[-1])}\n\n{table(COLUMNS, map(cells, rows), 'lr')}"


def cells(row: Row) -> list[str]:
    """In the order of `COLUMNS`."""
    times = figure(row["median_us"]), figure(row["floor_us"]), figure(row["ratio"])
    return [
        f"`{row['call']}`" if not row["call"].startswith("a step") else row["call"],
        *times,
        str(row["dispatched"]),
    ]
