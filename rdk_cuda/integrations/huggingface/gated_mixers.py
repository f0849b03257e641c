"""Kernels of recurrent layers that leave no trace of some tokens, and that are run again alone.

In a delta rule a token whose beta and g are 0 leaves the state as it is, and so does one whose time
step is 0 in Mamba 2. So a pass over sequences of several lengths has all of their states, padding
or not. And what a kernel was given in a pass is kept: after rejections it alone runs again, once
for all sequences, with beta = g = 0 in what is rejected. For that, mixers run in a pass by a copy
of their own forward, with these kernels in the place of those that it names.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Over so few tokens a kernel that goes from one to the next is faster than one that fills chunks.
_FEW = 16
_NOTING = "rdk_cuda_noting_forward"  # the name of our forwards


class Call(NamedTuple):
    """A kernel, what it was given in a pass but for states, and the states that it returned."""

    kernel: Kernel
    given: dict[str, Any]
    size: torch.Size
    states: Tensor | None

    def again(
        self, before: Tensor | None, own: Tensor, rows: Tensor, counts: Tensor, into: Tensor | None
    ) -> Tensor | None:
        """The states of its `rows` after the first `counts` columns, from those `own` before.

        None if they are written in their place, among those of all sequences.
        """
        width = int(counts.max())
        kept = torch.arange(width, device="cpu") < counts[:, None]

        def take(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() < 3 or value.shape[:2] != self.size:
                return value
            return taken_rows(value, rows)[:, :width]

        given = {name: take(value) for name, value in self.given.items()}
        scan = self.kernel
        if isinstance(scan, _Scan) and scan.go_on(given, kept, before, own, into):
            return None
        given[self.kernel.initial] = None if before is None else taken_rows(before, own)
        states: Tensor = self.kernel.run(given, None if bool(kept.all()) else kept)[1]
        return states if before is None else states.to(before.dtype)


class _Now(threading.local):
    noting: Any = None  # the `Pass` that this thread runs


_now = _Now()
_users: dict[Any, int] = {}
"""How many passes, in any thread, run a mixer by our forward."""
_lock = threading.Lock()


def _has_its_own(mixer: Any) -> bool:
    """Whether nobody but us, as accelerate's hooks do, has put another forward there."""
    forward = vars(mixer).get("forward")
    return forward is None or getattr(forward, "__name__", None) == _NOTING


@contextmanager
def noted(forwards: Mapping[Any, FunctionType], noting: Any) -> Iterator[None]:
    """Run these mixers by these forwards, in which this thread's calls of kernels are noted."""
    with _lock:
        ours = [mixer for mixer in forwards if _has_its_own(mixer)]
        for mixer in ours:
            _users[mixer] = _users.get(mixer, 0) + 1
            mixer.forward = MethodType(forwards[mixer], mixer)
    before, _now.noting = _now.noting, noting
    try:
        yield
    finally:
        _now.noting = before
        with _lock:
            for mixer in ours:
                _users[mixer] -= 1
                if not _users[mixer]:
                    if _has_its_own(mixer):
                        vars(mixer).pop("forward", None)
                    del _users[mixer]


def noting_forward(mixer: Any) -> FunctionType | None:
    """A mixer's forward with kernels that are noted.

    None if it is not known how its kernels are, or if somebody has put another forward there.
    """
    forward: Any = inspect.unwrap(type(mixer).forward)
    with _lock:
        if not _has_its_own(mixer) or not isinstance(forward, FunctionType):
            return None
    rules = _kernels(forward, {"g", "beta", "initial_state"})
    few = next((own for own in rules.values() if "chunk_size" not in _names(own)), None)
    others: dict[str, Any] = {name: Kernel(kernel, few) for name, kernel in rules.items()}
    for name, kernel in _kernels(forward, {"dt", "dt_limit", "initial_states"}).items():
        others[name] = _Scan(kernel)
    if not others:
        return None
    space = {**forward.__globals__, **others}
    copy = FunctionType(forward.__code__, space, _NOTING, forward.__defaults__, forward.__closure__)
    copy.__kwdefaults__ = forward.__kwdefaults__
    return copy


class Kernel:
    """A delta rule's kernel, or one for few tokens in its place."""

    initial, time = "initial_state", "g"

    def __init__(self, kernel: Callable[..., Any], few: Callable[..., Any] | None = None) -> None:
        self.kernel, self.few = kernel, few
        self.signature = inspect.signature(inspect.unwrap(kernel))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and note that if this thread's pass does."""
        noting = _now.noting
        if noting is None:
            return self.kernel(*args, **kwargs)
        given = dict(self.signature.bind(*args, **kwargs).arguments)
        given |= given.pop("kwargs", {})
        result = self.run(given, noting.kept)
        if isinstance(result, tuple):
            own = given | {self.initial: None}
            noting.call = Call(self, own, given[self.time].shape[:2], result[1])
        return result

    def run(self, given: dict[str, Any], kept: Tensor | None) -> Any:
        """Call it so that what is not `kept` changes no states."""
        if kept is not None:
            given = given | {name: _zeroed(given[name], kept) for name in ("g", "beta")}
        if self.few is None or given["g"].shape[1] > _FEW:
            return self.kernel(**given)
        return self.few(**{name: own for name, own in given.items() if name != "chunk_size"})


class _Scan(Kernel):
    """Mamba 2's kernel. Time steps are made before it, since it brings 0 to its own limits."""

    initial, time = "initial_states", "dt"

    def run(self, given: dict[str, Any], kept: Tensor | None) -> Any:
        """As `Kernel.run`."""
        given, time = dict(given), given["dt"]
        if kept is not None:
            given["dt"] = _steps(given, kept)
            given |= {"dt_bias": None, "dt_softplus": False, "dt_limit": (0.0, math.inf)}
        if time.device.type == "cpu":  # where the library's own code fills whole chunks
            given["chunk_size"] = min(given["chunk_size"], time.shape[1])
        return self.kernel(**given)

    def go_on(
        self,
        given: dict[str, Any],
        kept: Tensor,
        before: Tensor | None,
        own: Tensor,
        into: Tensor | None,
    ) -> bool:
        """Write the states of sequences `own` behind what is `kept`; False where `run` has to.

        Without outputs, each state is read once and written once.
        """
        if before is None or into is None or kept.shape[1] > _FEW or into.device.type != "cpu":
            return False
        if not before.dtype == into.dtype == torch.float32 or "hidden_states" not in given:
            return False
        values, steps = given["hidden_states"].float(), _steps(given, kept).float()
        passed = (steps * given["A"].float()).cumsum(1)
        weights = steps * (passed[:, -1:] - passed).exp()
        values = (values * weights[..., None]).permute(0, 2, 3, 1)
        keys = given["B"].float().transpose(1, 2)
        keys = keys.repeat_interleave(values.shape[1] // keys.shape[1], 1)
        left = passed[:, -1, :, None, None].exp()
        for n, b in enumerate(own.tolist()):  # one is in a cache nearby for the second operation
            torch.mul(before[b], left[n], out=into[b]).baddbmm_(values[n], keys[n])
        return True


def _steps(given: dict[str, Any], kept: Tensor) -> Tensor:
    """Mamba 2's time steps, 0 where nothing is `kept`."""
    steps, bias = given["dt"], given.get("dt_bias")
    steps = steps if bias is None else steps + bias.to(steps.dtype)
    steps = functional.softplus(steps) if given.get("dt_softplus") else steps
    return _zeroed(steps.clamp(*(given.get("dt_limit") or (0.0, math.inf))), kept)


def _kernels(forward: FunctionType, needed: set[str]) -> dict[str, Callable[..., Any]]:
    """The functions that a forward names and that take these arguments."""
    named = ((name, forward.__globals__.get(name)) for name in forward.__code__.co_names)
    return {name: own for name, own in named if inspect.isfunction(own) and needed <= _names(own)}


def _names(kernel: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(inspect.unwrap(kernel)).parameters)


def taken_rows(values: Tensor, rows: Tensor) -> Tensor:
    """The rows of a batch; no copy if these are all."""
    everyone = torch.equal(rows, torch.arange(len(values), device="cpu"))
    return values if everyone else values[rows.to(values.device)]


def _zeroed(values: Tensor, kept: Tensor) -> Tensor:
    mask = kept.to(values.device).reshape(*kept.shape, *[1] * (values.dim() - 2))
    return values.masked_fill(~mask, 0.0)
