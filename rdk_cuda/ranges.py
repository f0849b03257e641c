"""Named ranges on a profiler's timeline: what a decoder does, next to the kernels it launches.

They are in the NVTX domain `rdk`, which Nsight Systems shows (extra `[nvtx]`). While torch.profiler
runs, they are also its `record_function` ranges, without payloads. Where no profiler listens a
range costs a third of a microsecond, and nothing needs to be installed.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.autograd import profiler

from ._ops.contract import NAMESPACE

try:
    import nvtx
except ImportError:
    nvtx = None

LEGEND = {
    "step": "one decoding step; payload: sequences that take part",
    "drafter forward": "the drafter's pass for one place; payload: sequences that draft",
    "gather logits": "logits of dynamic tokens; payload: columns of a sequence",
    "redistribute": "rdk_cuda.redistribute, outside of the decoder; payload: rows",
    "draft": "sampling one draft for each sequence; payload: sequences that draft",
    "target forward": "the target's pass; payload: rows of logits",
    "verify": "accepting drafts, and the token after them; payload: drafted tokens",
    "accepted": "a mark after verify; payload: accepted drafts of all sequences",
    "cache update": "rejected tokens leave the models' caches; payload: sequences",
}
"""Every name, and what its payload counts."""

_DOMAIN: Any = None if nvtx is None else nvtx.get_domain(NAMESPACE)
if type(_DOMAIN).__name__ == "DummyDomain":
    _DOMAIN = None  # nvtx gives a dummy where no tool listens, and keeps to it
_ATTRIBUTES: dict[tuple[str, int], Any] = {}
_MOST_ATTRIBUTES = 4096  # payloads repeat, and a profiler keeps every one


class Range:
    """A range with a name and a number, as a context manager.

    Args:
        name: one of `LEGEND`.
        payload: what it counts.

    Example:
        >>> with Range("verify", payload=4):
        ...     pass
    """

    __slots__ = ("name", "payload", "recorded")

    def __init__(self, name: str, payload: int) -> None:
        self.name, self.payload = name, payload
        self.recorded: Any = None

    def __enter__(self) -> None:
        """Begin, but not in compiled code, where it would break the graph."""
        if (_DOMAIN is None and not profiler._is_profiler_enabled) or torch.compiler.is_compiling():
            return
        if _DOMAIN is not None:
            _DOMAIN.push_range(_attributes(self.name, self.payload))
        if profiler._is_profiler_enabled:
            self.recorded = profiler.record_function(f"rdk: {self.name}")
            self.recorded.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, also after an error."""
        if self.recorded is not None:
            self.recorded.__exit__(kind, error, trace)
        if _DOMAIN is not None and not torch.compiler.is_compiling():
            _DOMAIN.pop_range()


def mark(name: str, payload: int) -> None:
    """A moment with a name and a number."""
    if _DOMAIN is not None:
        _DOMAIN.mark(_attributes(name, payload))


def _attributes(name: str, payload: int) -> Any:
    found = _ATTRIBUTES.get((name, payload))
    if found is None:
        found = _DOMAIN.get_event_attributes(message=name, payload=payload)
        if len(_ATTRIBUTES) < _MOST_ATTRIBUTES:
            _ATTRIBUTES[name, payload] = found
    return found
