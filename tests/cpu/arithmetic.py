"""`Arithmetic` of csrc/cpu, called on tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CHUNK = 1024


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def pointers(rows: list[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(rows))(*(row.data_ptr() for row in rows))


class Arithmetic:
    """One instruction set."""

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.library, self.index = library, index
        for function in ("scale", "exponentiate", "residual"):
            getattr(library, function).restype = ctypes.c_float
        library.name.restype = ctypes.c_char_p
        self.name = library.name(index).decode()

    def scale(
        self,
        logits: Tensor,
        temperature: float = 1.0,
        bias: Tensor | None = None,
        bias_only_masks: bool = False,
    ) -> tuple[float, Tensor]:
        """The largest z, and z, of at most 1024 logits."""
        z = torch.full((CHUNK,), 77.0)
        largest = self.library.scale(
            self.index,
            DTYPES[logits.dtype],
            pointer(logits),
            ctypes.c_int64(logits.numel()),
            ctypes.c_float(temperature),
            pointer(bias),
            bias_only_masks,
            pointer(z),
        )
        return float(largest), z[: logits.numel()]

    def exponentiate(self, z: Tensor, shift: float = 0.0) -> tuple[float, Tensor]:
        """The sum of exp(z - shift), and these, of any number of columns."""
        padded = torch.full(((z.numel() + 15) // 16 * 16,), -torch.inf)
        padded[: z.numel()] = z
        total = self.library.exponentiate(
            self.index, pointer(padded), ctypes.c_int64(z.numel()), ctypes.c_float(shift)
        )
        return float(total), padded[: z.numel()]

    def spread_sums(self, weights: Tensor, spread: Tensor) -> Tensor:
        """sum_i weights[i] spread[i, r]."""
        count, rank = spread.shape
        padded = torch.zeros((count + 15) // 16 * 16)
        padded[:count] = weights
        sums = torch.empty(rank)
        self.library.spread_sums(
            self.index,
            pointer(padded),
            ctypes.c_int64(count),
            pointer(spread),
            ctypes.c_int64(rank),
            pointer(sums),
        )
        return sums

    def column_masses(
        self,
        columns: tuple[Tensor, Tensor, Tensor],
        weights: list[Tensor],
        begin: int,
        end: int,
    ) -> Tensor:
        """``[rows, end - begin]``; columns are (offsets, drafts, weights)."""
        masses = [torch.empty(end - begin) for _ in weights]
        self.library.column_masses(
            self.index,
            *(pointer(tensor) for tensor in columns),
            ctypes.c_int64(columns[0].numel() - 1),
            pointers(weights),
            ctypes.c_int64(len(weights)),
            ctypes.c_int64(begin),
            ctypes.c_int64(end),
            pointers(masses),
        )
        return torch.stack(masses)

    def residual(self, p: Tensor, q: Tensor) -> tuple[float, Tensor]:
        """The sum of max(p - q, 0), and these."""
        padded = torch.zeros(2, (p.numel() + 15) // 16 * 16)
        padded[0, : p.numel()] = p
        padded[1, : p.numel()] = q
        total = self.library.residual(
            self.index, pointer(padded[0]), pointer(padded[1]), ctypes.c_int64(p.numel())
        )
        return float(total), padded[0, : p.numel()]

    def dots(self, rows: list[Tensor], hidden: Tensor) -> Tensor:
        """Of at most four rows with one hidden state."""
        results = torch.full((len(rows),), 77.0)
        self.library.dots(
            self.index,
            DTYPES[hidden.dtype],
            pointers(rows),
            ctypes.c_int64(len(rows)),
            pointer(hidden),
            ctypes.c_int64(hidden.numel()),
            pointer(results),
        )
        return results
