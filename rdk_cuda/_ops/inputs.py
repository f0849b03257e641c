"""Forms that the Python layer accepts for an operator's tensors: one number or a list in place of
`[B]`, and arrays of other libraries in place of any."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from .. import _ops as operators

Integers = int | Sequence[int] | Tensor
Numbers = float | Sequence[float] | Tensor

WITHIN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "temperature": (lambda t: (t >= 0) & (t < math.inf), "a finite number of at least 0"),
    "top_k": (lambda k: k >= 0, "0 or more"),
    "top_p": (lambda p: (p > 0) & (p <= 1), "above 0 and at most 1"),
    "min_p": (lambda p: (p >= 0) & (p <= 1), "from 0 to 1"),
    "branches": (lambda b: (b >= 0) & (b < 2**24), "0 or more, below 2^24"),
}
"""Which values a temperature or a limit may have, of numbers and of tensors, and in words."""

_KINDS: dict[str, Callable[[Tensor], bool]] = {
    "integers": lambda t: not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool),
    "floats": Tensor.is_floating_point,
    "real numbers": lambda t: not t.is_complex(),
}
Dtypes = str | torch.dtype | tuple[torch.dtype, ...]
"""One of `_KINDS`, or the dtypes themselves."""

_MOST_KNOWN = 256  # forms of a call, of a function
_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def takes_arrays(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Accept arrays of CuPy, NumPy, JAX and others with `__dlpack__` as arguments like tensors.

    They are read where they are, without a copy; what CuPy has under way on its own stream comes
    first. Results stay tensors. Arguments annotated as a tensor or an `Affinity` have to be one.
    """
    parameters = inspect.signature(function).parameters
    names, kinds = list(parameters), {name: str(p.annotation) for name, p in parameters.items()}
    qualified = f"rdk_cuda.{function.__qualname__}"
    # Types of arguments that were taken as they are: to look at each again costs microseconds.
    known: set[tuple[Any, ...]] = set()

    def taken(argument: str, value: Any) -> Any:
        tensor = _as_tensor(qualified, argument, value)
        return _checked(qualified, argument, tensor, kinds.get(argument))

    @wraps(function)
    def converted(*args: Any, **kwargs: Any) -> Any:
        types = (*map(type, args), *kwargs, *map(type, kwargs.values()))
        if not torch.compiler.is_compiling() and types in known:  # nor guards on what is known
            return function(*args, **kwargs)
        given = [taken(argument, x) for argument, x in zip(names, args, strict=False)]
        named = {argument: taken(argument, x) for argument, x in kwargs.items()}
        same = all(map(operator.is_, given, args))
        same = same and all(map(operator.is_, named.values(), kwargs.values()))
        if not torch.compiler.is_compiling() and same and len(known) < _MOST_KNOWN:
            known.add(types)
        return function(*given, *args[len(names) :], **named)

    return cast(Callable[_Parameters, _Result], converted)


def _as_tensor(function: str, name: str, value: Any) -> Any:
    if isinstance(value, Tensor) or not hasattr(value, "__dlpack__"):
        return value
    try:
        return from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        kind = f"{type(value).__module__}.{type(value).__name__}"
        raise ValueError(
            f"{function}: {name} is a {kind} that torch cannot take ({error}); pass a "
            "tensor, or a writable array of numbers that lies in memory as torch's do"
        ) from error


def _checked(function: str, name: str, value: Any, kind: str | None) -> Any:
    if kind == "Tensor" or (kind == "Tensor | None" and value is not None):
        if not isinstance(value, Tensor):
            raise TypeError(f"{function}: {name} is a {type(value).__name__}; needs a tensor")
    elif kind == "Affinity":
        refuse_other_than_affinity(function, value)
    return value


def refuse_other_than_affinity(function: str, value: Any) -> None:
    """Refuse now, say, a `Vocabulary`: it has the same sizes, and would be noticed late."""
    if not hasattr(value, "by_draft"):  # the class itself imports this module
        raise TypeError(f"{function}: affinity is a {type(value).__name__}; needs an Affinity")


def check_shape(name: str, tensor: Tensor, *needs: int | str, error: Any = ValueError) -> None:
    """Refuse another shape; a size in words stands for any.

    Args:
        name: of the function and the argument, for the message.
    """
    if not _has_shape(tensor, needs):
        needed = ", ".join(map(str, needs))
        raise error(f"{name} has shape {list(tensor.shape)}; needs [{needed}]")


def check_tensor(
    name: str, tensor: Tensor, dtypes: Dtypes, *needs: int | str, error: Any = ValueError
) -> None:
    """Refuse another dtype or shape, as `check_shape`; of "n >= 1" also a size of 0."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} is {tensor!r:.40}; needs a tensor")
    words = dtypes if isinstance(dtypes, str) else ""
    known = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    if not (_KINDS[words](tensor) if words else tensor.dtype in known) or not _has_shape(
        tensor, needs
    ):
        needed = f"{', '.join(map(str, known))} [{', '.join(map(str, needs))}]"
        raise error(
            f"{name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; needs {needed}"
        )


def _has_shape(tensor: Tensor, needs: Sequence[int | str]) -> bool:
    fits = len(tensor.shape) == len(needs)
    for size, needed in zip(tensor.shape, needs, strict=False):
        words = isinstance(needed, str) and (size > 0 or not needed.endswith(" >= 1"))
        fits = fits and (size == needed or words)
    return fits


def check_entries(
    name: str, values: Tensor, holds: Tensor, needs: str, error: Any = ValueError
) -> None:
    """Refuse values of which some entries do not hold, by the first of these."""
    if not bool(holds.all()):
        at = (~holds).nonzero()[0].tolist()
        raise error(f"{name}{at or ''} is {values[tuple(at)].item()}; needs {needs}")


def whole_number(
    function: str, name: str, value: Any, least: int | None = None, most: int | None = None
) -> int:
    """Return the integer that `value` is; refuse a float, and one out of range."""
    given: Any = None if isinstance(value, bool) else value
    try:
        number = operator.index(given)
    except TypeError:
        raise TypeError(f"{function}: {name} is {value!r:.40}; needs an integer") from None
    if (least is not None and number < least) or (most is not None and number > most):
        needs = f"at least {least}" if most is None else f"{least} to {most}"
        raise ValueError(f"{function}: {name} is {number}; needs {needs}")
    return number


def one_number(function: str, name: str, value: Any) -> float:
    """Return the number that `value` is; refuse several, and one out of range."""
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    if not isinstance(number, int | float):
        raise TypeError(f"{function}: {name} is {value!r:.40}; needs one number")
    refuse_number(function, name, number)
    return float(number)


def on_host(values: Any) -> Tensor:
    """Put numbers in any form on the CPU; those without a dtype have Python's precision."""
    given = torch.as_tensor(values, device="cpu").detach()
    if given.is_floating_point() and not hasattr(values, "dtype"):
        return torch.as_tensor(values, dtype=torch.float64, device="cpu")
    return given


def upload(values: Any, device: torch.device) -> Tensor:
    """Copy an array to a device, and do not wait: from other memory than this the copy would."""
    own = torch.from_numpy(values)
    return (own.pin_memory() if device.type == "cuda" else own).to(device, non_blocking=True)


def refuse_number(function: str, name: str, value: Any) -> None:
    """Refuse Python numbers out of range, alone or in lists.

    Tensors are not looked at, which would wait for a device: operators have a result for them.
    """
    if isinstance(value, Tensor):
        return
    if isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            refuse_number(function, name, each)
        return
    within, needs = WITHIN[name.removeprefix("draft_")]
    try:
        valid = bool(within(value))
    except TypeError:
        raise TypeError(
            f"{function}: {name} is {value!r:.40}; needs a number, or a tensor or list of them"
        ) from None
    if not valid:
        raise ValueError(f"{function}: {name} is {value!r}; needs to be {needs}")


def temperatures(
    function: str,
    temperature: Numbers,
    leading: Sequence[int],
    device: torch.device,
    name: str = "temperature",
) -> Tensor:
    """Make float32 of the leading shape, from one number, `[B]` or that shape."""
    if _is_plain(temperature, torch.float32, leading, device):
        return cast(Tensor, temperature)
    refuse_number(function, name, temperature)
    needed = tuple(leading)
    if isinstance(temperature, (int, float)):
        return torch.full(needed, float(temperature), device=device, dtype=torch.float32)
    given = temperature
    if not isinstance(given, Tensor):
        given = torch.as_tensor(given, dtype=torch.float32, device="cpu")
    if tuple(given.shape) not in ((), needed, needed[:1]):
        choices = " or ".join(dict.fromkeys(str(list(s)) for s in (needed[:1], needed)))
        raise ValueError(
            f"{function}: {name} has shape {list(given.shape)}; needs {choices}, or one number"
        )
    padded = given.reshape(given.shape + (1,) * (len(needed) - given.dim()))
    return padded.to(device, torch.float32).expand(needed).contiguous()


def per_sequence(
    function: str, name: str, value: Integers, batch: int, device: torch.device
) -> Tensor:
    """Make int64 `[B]`, of one integer or `[B]`. Integers of 64 unsigned bits keep their bits."""
    if _is_plain(value, torch.int64, (batch,), device):
        return cast(Tensor, value)
    if isinstance(value, Tensor):
        given = value
    elif isinstance(value, Sequence) and not isinstance(value, str):
        signed = [_signed(function, name, each, batch) for each in value]
        given = torch.tensor(signed, device="cpu", dtype=torch.int64)
    else:
        signed_one = _signed(function, name, value, batch)
        return torch.full((batch,), signed_one, device=device, dtype=torch.int64)
    if tuple(given.shape) not in ((), (batch,)) or given.is_floating_point():
        raise ValueError(
            f"{function}: {name} is {given.dtype} of shape {list(given.shape)}; needs int64 of "
            f"shape [{batch}], one for each sequence, or one int"
        )
    return given.to(device, torch.int64).expand(batch).contiguous()


def _signed(function: str, name: str, value: Any, batch: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{function}: {name} is {value!r}; needs an integer, or {batch} of them"
        ) from None
    if not -(2**63) <= number < 2**64:
        raise ValueError(f"{function}: {name} is {number}; needs an integer of 64 bits")
    return (number + 2**63) % 2**64 - 2**63


def limits(
    function: str, name: str, value: Numbers | None, leading: Sequence[int], device: torch.device
) -> Tensor | None:
    """Top-k or branches as int32, top-p or min-p as float32, of the leading shape, from one number,
    `[B]` or that shape."""
    if value is None:
        return None
    if name in ("top_p", "min_p"):
        return temperatures(function, value, leading, device, name)
    if _is_plain(value, torch.int32, leading, device):
        return cast(Tensor, value)
    refuse_number(function, name, value)
    needed, most = tuple(leading), 2**31 - 1
    if not isinstance(value, Tensor):
        value = [min(k, most) for k in value] if isinstance(value, Sequence) else min(value, most)
    if not isinstance(value, Tensor) or tuple(value.shape) != needed:
        given = per_sequence(function, name, cast(Integers, value), math.prod(needed[:1]), device)
        value = given.reshape(needed[:1] + (1,) * (len(needed) - 1))
    elif value.is_floating_point():
        raise ValueError(f"{function}: {name} is {value.dtype}; needs integers")
    return value.to(device).clamp(-1, most).int().expand(needed).contiguous()


def row_limits(
    function: str,
    top_k: Integers | None,
    top_p: Numbers | None,
    min_p: Numbers | None,
    shape: Sequence[int],
    device: torch.device,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Make top-k, top-p and min-p as the operators take them, each as `limits` does."""
    return (
        limits(function, "top_k", top_k, shape, device),
        limits(function, "top_p", top_p, shape, device),
        limits(function, "min_p", min_p, shape, device),
    )


def user_seeds(function: str, seeds: Integers | None, batch: int, device: torch.device) -> Tensor:
    """Give each sequence a seed: of one scalar, sequence b gets `step_keys(seed, b)`."""
    if seeds is None:
        limits = torch.iinfo(torch.int64)
        return torch.randint(limits.min, limits.max, (batch,), device=device)
    given = per_sequence(function, "seeds", seeds, batch, device)
    if isinstance(seeds, Sequence) or (isinstance(seeds, Tensor) and seeds.dim() == 1):
        return given
    keys: Tensor = operators.step_keys(given, torch.arange(batch, device=device))
    return keys


def seeds_and_positions(
    function: str,
    seeds: Integers | None,
    positions: Integers | None,
    batch: int,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Make the seed of each sequence, and the position of the first token of its step."""
    if seeds is not None and positions is None:
        raise ValueError(
            f"{function}: got seeds without positions, with which every step would draw the same "
            "random numbers; pass positions= too, the absolute position of the step's first token: "
            "how many tokens are decided"
        )
    first = per_sequence(
        function, "positions", 0 if positions is None else positions, batch, device
    )
    return user_seeds(function, seeds, batch, device), first


def step_keys_and_positions(*given: Any) -> tuple[Tensor, Tensor]:
    """Make the key of a step and the position of its first token, for each sequence.

    Args:
        given: as in `seeds_and_positions`.
    """
    seeds, first = seeds_and_positions(*given)
    keys: Tensor = operators.step_keys(seeds, first)
    return keys, first


def _is_plain(value: Any, dtype: torch.dtype, shape: Sequence[int], device: torch.device) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype == dtype
        and value.shape == shape
        and value.device == device
        and value.is_contiguous()
    )
