"""Changes to one argument of a call: its dtype, rank, size, layout, or that it is there at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS

if TYPE_CHECKING:
    from .calls import Call

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def change(call: Call, random: Random) -> None:
    rules = OPERATORS[call.operator].tensors
    names = [name for name in rules if call.arguments[name] is not None]
    name = random.choice(names)
    kind = random.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    changed = KINDS[kind][1](call.arguments[name], random)
    if changed is None and len(names) == 1:
        return  # PyTorch cannot dispatch a call without any tensor
    call.arguments[name] = changed
    call.changed.append(f"{name} {kind}")


def absent(tensor: Tensor, random: Random) -> None:
    return None


def other_dtype(tensor: Tensor, random: Random) -> Tensor:
    return tensor.to(random.choice(DTYPES))


def other_rank(tensor: Tensor, random: Random) -> Tensor:
    if random.random() < 0.5 or tensor.dim() == 0:
        return tensor.unsqueeze(random.randint(0, tensor.dim()))
    if tensor.shape[0] and random.random() < 0.5:
        return tensor[0]
    return tensor.flatten() if tensor.dim() > 1 else tensor.reshape(1, -1)


def other_size(tensor: Tensor, random: Random) -> Tensor:
    """One more (the first again) or less, or none, in any dimension."""
    if tensor.dim() == 0:
        return tensor.reshape(1)
    dim = random.randrange(tensor.dim())
    size = tensor.shape[dim]
    amount = random.choice([size - 1, size - 1, size + 1, size + 1, 0])
    if amount <= size:
        return tensor.narrow(dim, 0, max(amount, 0)).clone()
    if size == 0:
        return tensor.new_zeros([*tensor.shape[:dim], 1, *tensor.shape[dim + 1 :]])
    return torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)


def spaced_columns(tensor: Tensor, random: Random) -> Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def one_column_for_all(tensor: Tensor, random: Random) -> Tensor:
    """Stride 0 in the last dimension."""
    if tensor.dim() == 0 or tensor.shape[-1] == 0:
        return tensor
    return tensor[..., :1].expand(tensor.shape)


def transposed(tensor: Tensor, random: Random) -> Tensor:
    """The same values, the first and another dimension swapped in memory."""
    if tensor.dim() < 2:
        return tensor
    other = random.randrange(1, tensor.dim())
    return (
        tensor.transpose(0, other).clone(memory_format=torch.contiguous_format).transpose(0, other)
    )


def in_wider_rows(tensor: Tensor, random: Random) -> Tensor:
    """A slice of rows whose other columns are the worst there is."""
    if tensor.dim() == 0:
        return tensor
    before, after = random.randint(0, 8), random.randint(0, 3)
    width = tensor.shape[-1]
    worst = math.nan if tensor.is_floating_point() else 99
    wide = tensor.new_full((*tensor.shape[:-1], before + width + after), worst)
    wide[..., before : before + width] = tensor
    return wide[..., before : before + width]


def every_second_row(tensor: Tensor, random: Random) -> Tensor:
    if tensor.dim() < 2:
        return tensor
    dim = random.randrange(tensor.dim() - 1)
    return torch.stack([tensor, tensor], dim + 1).select(dim + 1, 0)


def one_row_for_all(tensor: Tensor, random: Random) -> Tensor:
    """Stride 0 in a leading dimension."""
    if tensor.dim() < 2:
        return tensor
    dim = random.randrange(tensor.dim() - 1)
    if tensor.shape[dim] == 0:
        return tensor
    return tensor.narrow(dim, 0, 1).expand(tensor.shape)


def overlapping_rows(tensor: Tensor, random: Random) -> Tensor:
    """Each row begins one element after the last one."""
    if tensor.dim() != 2:
        return tensor
    rows, columns = tensor.shape
    if rows == 0 or columns == 0:
        return tensor
    return tensor.flatten()[: rows + columns - 1].clone().as_strided((rows, columns), (1, 1))


def at_an_odd_address(tensor: Tensor, random: Random) -> Tensor:
    """As contiguous as before, one to three elements into its memory, at whose end it ends."""
    skip = random.randint(1, 3)
    memory = tensor.new_zeros(tensor.numel() + skip)
    memory[skip:] = tensor.flatten()
    return memory[skip:].view(tensor.shape)


KINDS: dict[str, tuple[float, Callable[[Tensor, Random], Tensor | None]]] = {
    "absent": (1, absent),
    "of another dtype": (2, other_dtype),
    "of another rank": (2, other_rank),
    "of another size": (4, other_size),
    "with spaced columns": (1, spaced_columns),
    "with one column for all": (0.5, one_column_for_all),
    "transposed in memory": (1, transposed),
    "in wider rows": (2, in_wider_rows),
    "every second row": (1.5, every_second_row),
    "with one row for all": (1, one_row_for_all),
    "with overlapping rows": (0.5, overlapping_rows),
    "at an odd address": (1, at_an_odd_address),
}
