"""Recordings of two bigram models on texts small enough to know everything about."""

from __future__ import annotations

import torch

from rdk_cuda.decoding.models import Reading
from rdk_cuda.recipes.inputs.documents import Window
from rdk_cuda.recipes.record import record
from rdk_cuda.recipes.recording import Recording

V_T, D, W = 40, 3, 5
TEMPERATURES = (1.0, 0.6)
MEMORY = 1 << 20
READS = 7  # of `windows_of()`, whose neighbours of one length are read together


def table(size: int) -> torch.Tensor:
    return torch.randn(V_T, size, generator=torch.Generator().manual_seed(size)) * 3


def read(ids: torch.Tensor) -> Reading:
    """A bigram model and a drafter whose state is a row of a table."""
    return Reading(table(V_T)[ids], table(D)[ids])


def windows_of(count: int = 13) -> list[Window]:
    """Neighbours of equal and of different lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = [(7, 7, 7, 4, 12)[i % 5] for i in range(count)]
    return [
        Window(i // 2, torch.randint(V_T, (length,), generator=generator).tolist())
        for i, length in enumerate(lengths)
    ]


def recorded(windows=None, model=read, **changes) -> Recording:
    arguments = {"temperatures": TEMPERATURES, "memory": MEMORY, "context": W, "seed": 3}
    return record(model, windows_of() if windows is None else windows, **(arguments | changes))


def tensors_of(recording: Recording) -> dict[str, torch.Tensor]:
    both = {**vars(recording), **vars(recording.samples)}
    return {name: value for name, value in both.items() if isinstance(value, torch.Tensor)}


def assert_same_bits(one: Recording, other: Recording) -> None:
    assert one.temperatures == other.temperatures == one.samples.temperatures
    for name, tensor in tensors_of(one).items():
        assert torch.equal(tensor, tensors_of(other)[name]), name
    assert len(tensors_of(one)) == 9
