"""How much memory a step's sampling takes: at its peak, and between drafting and verifying."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

# Or its profiler says on standard error when it begins and ends.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

MEASURED_BY = {
    "cuda": "torch.cuda.max_memory_allocated",
    "cpu": "torch.profiler, allocations of torch's allocator",
}


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """The most that a call allocates at once, beyond its inputs.

    What a function takes from elsewhere than torch's allocator, as scratch on a stack, is not
    counted.

    Example:
        >>> x = torch.ones(1000)
        >>> peak_bytes(lambda: x.neg().neg(), torch.device("cpu"))
        8000
    """
    call()  # whatever it keeps for good is there now
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    assert recorded.profiler is not None
    events = recorded.profiler.kineto_results.events()
    changes = [(each.start_ns(), each.nbytes()) for each in events if each.name() == "[memory]"]
    held = most = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        held += change
        most = max(most, held)
    return most


def kept_bytes(kept: Iterable[object]) -> int:
    """Bytes of the storages of the tensors among some objects, each counted once.

    Example:
        >>> x = torch.ones(4, 5)
        >>> kept_bytes([x, x[0], torch.ones(2, dtype=torch.int64)])
        96
    """
    tensors = [each for each in kept if isinstance(each, Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())
