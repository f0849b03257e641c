"""What the Python layer accepts in place of an operator's `[B]` tensors: one number for all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import operators


def temperatures(
    function: str, temperature: float | Tensor, leading: Sequence[int], device: torch.device
) -> Tensor:
    """Float32 of the leading shape, from one number, `[B]` or that shape."""
    if not isinstance(temperature, Tensor):
        return torch.full(tuple(leading), float(temperature), device=device)
    shape, needed = tuple(temperature.shape), tuple(leading)
    if shape not in ((), needed, needed[:1]):
        choices = " or ".join(dict.fromkeys(str(list(s)) for s in (needed[:1], needed)))
        raise ValueError(
            f"rdk_cuda.{function}: temperature has shape {list(shape)}; needs {choices}, or one "
            "number"
        )
    padded = temperature.reshape(shape + (1,) * (len(needed) - len(shape)))
    return padded.to(device, torch.float32).expand(needed).contiguous()


def per_sequence(
    function: str, name: str, value: int | Tensor, batch: int, device: torch.device
) -> Tensor:
    """Int64 `[B]`, from one number or `[B]`."""
    if not isinstance(value, Tensor):
        return torch.full((batch,), int(value), dtype=torch.int64, device=device)
    if tuple(value.shape) not in ((), (batch,)) or value.is_floating_point():
        raise ValueError(
            f"rdk_cuda.{function}: {name} is {value.dtype} of shape {list(value.shape)}; needs "
            f"int64 of shape [{batch}], one for each sequence, or one int"
        )
    return value.to(device, torch.int64).expand(batch).contiguous()


def user_seeds(
    function: str,
    seeds: int | Tensor | None,
    generator: torch.Generator | None,
    batch: int,
    device: torch.device,
) -> Tensor:
    """A seed for each sequence: of one scalar, sequence b gets `step_seeds(seed, b)`."""
    if seeds is None:
        source = device if generator is None else generator.device
        limits = torch.iinfo(torch.int64)
        drawn = torch.randint(limits.min, limits.max, (batch,), generator=generator, device=source)
        return drawn.to(device)
    if generator is not None:
        raise ValueError(f"rdk_cuda.{function}: got both seeds and generator; pass one of them")
    given = per_sequence(function, "seeds", seeds, batch, device)
    if isinstance(seeds, Tensor) and seeds.dim() == 1:
        return given
    return operators.step_seeds(given, torch.arange(batch, device=device))
