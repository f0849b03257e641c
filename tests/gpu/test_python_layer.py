"""The Python layer with tensors that are on the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.affinity import Affinity
from tests import generators
from tests.operators.test_python_layer import BATCH, DRAFTS, SIZE, inputs

from .stand_in import moved

ON_THE_DEVICE = ["seeds as a number", "seeds as a list", "seeds as a tensor", "in two parts"]


def step(
    how: str, affinity: Affinity, logits: Tensor, tokens: Tensor, values: Tensor, target: Tensor
) -> tuple[Tensor, ...]:
    """A draft and its verification, all tensors on one device."""
    seeds = {
        "seeds as a number": 7,
        "seeds as a list": list(range(BATCH)),
        "seeds as a tensor": torch.arange(BATCH, device=logits.device),
    }.get(how, 3)
    first = {"seeds": seeds, "positions": 5, "temperature": [1.0, 0.5, 0.0, 2.0]}
    parts = [slice(0, DRAFTS)] if how != "in two parts" else [slice(0, 1), slice(1, DRAFTS)]
    drafts: list[rdk_cuda.Draft] = []
    for part in parts:
        link = {"after": drafts[-1]} if drafts else first
        dynamic = {
            "dynamic_tokens": tokens[:, part].contiguous(),
            "dynamic_logits": values[:, part],
        }
        drafts.append(rdk_cuda.draft(logits[:, part], affinity, **link, **dynamic))
    verified = rdk_cuda.verify(target, drafts, affinity, 0.9)
    copied = rdk_cuda.Draft.without_distribution(drafts[0].tokens, seeds=seeds, positions=0)
    width = copied.tokens.shape[1] + 1
    greedy = rdk_cuda.verify(target[:, :width], copied, affinity, temperature=0)
    return (*verified, *greedy, *(draft.tokens for draft in drafts))


@pytest.mark.parametrize("how", ON_THE_DEVICE)
def test_tensors_on_the_device_give_what_tensors_on_the_cpu_give(
    natively: None, device: torch.device, how: str
) -> None:
    affinity = generators.affinity("mixed-2", SIZE)
    given = inputs(affinity)
    expected = step(how, affinity, *given)
    there, on_device = affinity.to(device), moved(given, device)
    results = step(how, there, *on_device)
    q = rdk_cuda.redistribute(on_device[0], there, 0.8)
    assert torch.equal(q[1, 2], rdk_cuda.redistribute(on_device[0][1, 2], there, 0.8))
    for actual, same in zip(results, expected, strict=True):
        assert actual.device.type == device.type
        assert torch.equal(actual.cpu(), same)
