"""CuPy beside the operators: its arrays as arguments, its sparse product as a second reference."""

from __future__ import annotations

import threading

import pytest
import torch

import rdk_cuda
from rdk_cuda import reference
from tests import generators
from tests.tolerances import assert_as_exact_as_torch

from .sparse_reference import redistributed

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")

SIZE, ROWS = 2500, 40


@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_redistribution_is_cupys_sparse_product(cuda: torch.device, kind: str) -> None:
    from cupyx.scipy import sparse

    affinity = generators.affinity(kind, SIZE)
    logits = generators.logits(ROWS, affinity.draft_size)
    tokens = generators.dynamic_tokens(ROWS, 9, SIZE)
    values = generators.logits(ROWS, 9, seed=1)
    given = [logits, tokens, values]
    there = affinity.to(cuda)
    on_gpu = [tensor.to(cuda) for tensor in given]
    q = rdk_cuda.redistribute(
        on_gpu[0], there, 0.8, dynamic_tokens=on_gpu[1], dynamic_logits=on_gpu[2]
    )
    exact = redistributed(cupy, sparse, there, on_gpu[0], 0.8, *on_gpu[1:])
    by_torch = reference.redistribute(
        logits, torch.full((ROWS,), 0.8), *affinity.by_target, affinity.row_top, tokens, values
    )
    assert_as_exact_as_torch(q.cpu(), by_torch, torch.from_dlpack(exact).cpu())


def test_cupy_arrays_give_what_tensors_give_also_from_a_thread_of_its_own(
    cuda: torch.device,
) -> None:
    affinity = generators.affinity("mixed-2", SIZE).to(cuda)
    logits = generators.logits(ROWS, affinity.draft_size).to(cuda)
    seeds = torch.arange(ROWS, device=cuda)
    expected = rdk_cuda.draft(logits, affinity, seeds=seeds).tokens
    drafted: list[torch.Tensor] = []

    def draft() -> None:
        with cupy.cuda.Stream(non_blocking=True):  # whose work comes first
            array = cupy.from_dlpack(logits) * 1
        drafted.append(rdk_cuda.draft(array, affinity, seeds=cupy.from_dlpack(seeds)).tokens)

    thread = threading.Thread(target=draft)
    thread.start()
    thread.join()
    assert torch.equal(drafted[0], expected)
