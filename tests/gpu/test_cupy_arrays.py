"""CuPy's arrays as arguments of the operators."""

from __future__ import annotations

import threading

import pytest
import torch

import rdk_cuda
from tests import generators

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SIZE, ROWS = 2500, 40


def test_cupy_arrays_give_what_tensors_give_also_from_a_thread_of_its_own(
    cuda: torch.device,
) -> None:
    affinity = generators.affinity("mixed-2", SIZE).to(cuda)
    logits = generators.logits(ROWS, affinity.draft_size).to(cuda)
    seeds = torch.arange(ROWS, device=cuda)
    expected = rdk_cuda.draft(logits, affinity, seeds=seeds, positions=0).tokens
    drafted: list[torch.Tensor] = []

    def draft() -> None:
        with cupy.cuda.Stream(non_blocking=True):  # whose work comes first
            array = cupy.from_dlpack(logits) * 1
        drafted.append(
            rdk_cuda.draft(array, affinity, seeds=cupy.from_dlpack(seeds), positions=0).tokens
        )

    thread = threading.Thread(target=draft)
    thread.start()
    thread.join()
    assert torch.equal(drafted[0], expected)
