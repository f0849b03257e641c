"""The Python layer on the device compiles into one graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests import generators
from tests.operators.test_python_layer import identity

from .stand_in import moved


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_step_of_the_python_layer_compiles_into_one_graph(
    natively: None, device: torch.device, backend: str
) -> None:
    affinity = identity().to(device)

    def step(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
        first = rdk_cuda.draft(draft_logits, affinity, seeds=1, positions=7)
        second = rdk_cuda.draft(draft_logits, affinity, after=first)
        return rdk_cuda.verify(target_logits, [first, second], affinity).tokens

    given = [generators.logits(6, 5).view(2, 3, 5)[0], generators.logits(9, 5, 1).view(3, 3, 5)]
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    on_device = moved(given, device)
    assert torch.equal(compiled(*on_device), step(*on_device))
