"""Mixers that run over more tokens than a sequence keeps, without a trace of the others.

In a delta rule a token whose beta and g are 0 leaves the state as it is, and so does one whose time
step is 0 in Mamba 2. So all sequences of a batch are read at once, however many tokens each keeps.
A mixer's own forward is run for that, with other kernels in the place of those that it names.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.nn import functional

# Over so few tokens a kernel that goes from one to the next is faster than one that fills chunks.
_FEW = 16


def gated_forward(mixer: Any, kept: Tensor) -> Callable[..., Any] | None:
    """A mixer's forward in which the tokens that are not `kept [B, W]` change no recurrent state.

    None if it is not known how its kernels do that, or if somebody has put another forward there.
    """
    forward: Any = inspect.unwrap(type(mixer).forward)
    if "forward" in vars(mixer) or not isinstance(forward, FunctionType):
        return None
    others: dict[str, Any] = {}
    rules = _kernels(forward, {"g", "beta", "initial_state"})
    one_by_one = next((own for own in rules.values() if "chunk_size" not in _names(own)), None)
    for name, kernel in rules.items():
        others[name] = _delta_rule(kernel, one_by_one if kept.shape[1] <= _FEW else None, kept)
    for name, kernel in _kernels(forward, {"dt", "dt_limit", "initial_states"}).items():
        others[name] = _scan(kernel, kept)
    if not others:
        return None
    space = {**forward.__globals__, **others}
    gated = FunctionType(
        forward.__code__, space, forward.__name__, forward.__defaults__, forward.__closure__
    )
    gated.__kwdefaults__ = forward.__kwdefaults__
    return gated


def _kernels(forward: FunctionType, needed: set[str]) -> dict[str, Callable[..., Any]]:
    """The functions that a forward names and that take these arguments."""
    named = ((name, forward.__globals__.get(name)) for name in forward.__code__.co_names)
    return {name: own for name, own in named if inspect.isfunction(own) and needed <= _names(own)}


def _names(kernel: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(inspect.unwrap(kernel)).parameters)


def _delta_rule(
    kernel: Callable[..., Any], few: Callable[..., Any] | None, kept: Tensor
) -> Callable[..., Any]:
    """A kernel, or one for few tokens in its place, with g and beta of 0 where none is kept."""
    signature = inspect.signature(inspect.unwrap(kernel))

    def call(*args: Any, **kwargs: Any) -> Any:
        given = _bound(signature, args, kwargs)
        given |= {name: _zeroed(given[name], kept) for name in ("g", "beta")}
        if few is not None:
            given.pop("chunk_size", None)
        return (few or kernel)(**given)

    return call


def _scan(kernel: Callable[..., Any], kept: Tensor) -> Callable[..., Any]:
    """A kernel whose time steps are made before it, since it would bring 0 to its own limits."""
    signature = inspect.signature(inspect.unwrap(kernel))

    def call(*args: Any, **kwargs: Any) -> Any:
        given = _bound(signature, args, kwargs)
        time, bias = given["dt"], given.get("dt_bias")
        time = time if bias is None else time + bias.to(time.dtype)
        time = functional.softplus(time) if given.get("dt_softplus") else time
        low, high = given.get("dt_limit") or (0.0, math.inf)
        given["dt"] = _zeroed(time.clamp(low, high), kept)
        if time.device.type == "cpu":  # where the library's own code fills whole chunks
            given["chunk_size"] = min(given["chunk_size"], time.shape[1])
        given |= {"dt_bias": None, "dt_softplus": False, "dt_limit": (0.0, math.inf)}
        return kernel(**given)

    return call


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    given = dict(signature.bind(*args, **kwargs).arguments)
    return {**given, **given.pop("kwargs", {})}


def _zeroed(values: Tensor, kept: Tensor) -> Tensor:
    mask = kept.to(values.device).reshape(*kept.shape, *[1] * (values.dim() - 2))
    return values.masked_fill(~mask, 0.0)
