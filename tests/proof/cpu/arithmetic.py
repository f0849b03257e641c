"""`Arithmetic` of csrc/cpu, called on tensors."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
CHUNK = 1024


def pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class Arithmetic:
    """One instruction set."""

    def __init__(self, library: ctypes.CDLL, index: int) -> None:
        self.library, self.index = library, index
        for function in ("scale", "exponentiate"):
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

    def measure(self, z: Tensor, weights: Tensor, threshold: float) -> tuple[int, int]:
        """How many of at most 1024 z reach the threshold, and their masses in units of 2^-40."""
        padded = torch.full((2, CHUNK), -torch.inf)
        padded[1] = 0
        padded[0, : z.numel()], padded[1, : z.numel()] = z, weights
        found = (ctypes.c_int64 * 2)()
        self.library.measure(
            self.index,
            pointer(padded[0]),
            pointer(padded[1]),
            ctypes.c_int64(z.numel()),
            ctypes.c_float(threshold),
            found,
        )
        return found[0], found[1]
