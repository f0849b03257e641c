"""The CUDA operators in PyTorch: opcheck, fake tensors, torch.compile without breaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests import generators
from tests.reference import test_pytorch
from tests.reference.test_python_layer import identity
from tests.reference.test_pytorch import *  # noqa: F403
from tests.reference.test_refusals import calls

from .stand_in import moved


@pytest.fixture(autouse=True)
def _calls_on_the_device(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests of tests/reference/test_pytorch.py call the operators with."""

    def on_device() -> dict[str, dict[str, Any]]:
        made: dict[str, dict[str, Any]] = moved(calls(), device)
        return made

    monkeypatch.setattr(test_pytorch, "calls", on_device)


def test_the_calls_are_on_the_device(device: torch.device) -> None:
    for arguments in test_pytorch.calls().values():
        assert next(iter(arguments.values())).device.type == device.type


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
