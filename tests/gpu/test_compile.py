"""The CUDA operators in PyTorch: opcheck, fake tensors, torch.compile without breaks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.reference import test_pytorch
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
