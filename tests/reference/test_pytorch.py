"""The operators are citizens of PyTorch: opcheck, fake tensors, torch.compile without breaks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from tests.reference.test_refusals import calls

OPERATORS = list(calls())


def without_optional(arguments: dict[str, Any]) -> dict[str, Any]:
    optional = ("dynamic_tokens", "dynamic_logits", "draft_stats", "draft_rows")
    return {name: None if name in optional else value for name, value in arguments.items()}


def outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck(operator: str) -> None:
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    for given in (arguments, without_optional(arguments)):
        torch.library.opcheck(packet.default, tuple(given.values()))


@pytest.mark.parametrize("operator", OPERATORS)
def test_meta_tensors_give_the_shapes_and_dtypes(operator: str) -> None:
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    meta = {
        name: value.to("meta") if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }
    for fake, real in zip(outputs(packet(**meta)), outputs(packet(**arguments)), strict=True):
        assert fake.device.type == "meta"
        assert (fake.shape, fake.dtype, fake.stride()) == (real.shape, real.dtype, real.stride())


def step(verify: dict[str, Any], draft: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """A speculative step as a decoder writes it, with ordinary PyTorch around the operators."""
    seeds = torch.ops.rdk.step_seeds(verify["seeds"], verify["positions"])
    each = seeds.repeat_interleave(2)
    tokens, stats = torch.ops.rdk.draft(**{**draft, "seeds": each})
    target = verify["target_logits"] - verify["target_logits"].amax(-1, keepdim=True)
    tokens, num_accepted = torch.ops.rdk.verify(
        **{
            **verify,
            "target_logits": target,
            "draft_tokens": tokens,
            "draft_stats": stats,
            "seeds": seeds,
        }
    )
    return tokens.clamp(min=0), num_accepted + 1


BACKENDS = [("aot_eager", None), ("aot_eager", True), ("inductor", None)]


@pytest.mark.parametrize(("backend", "dynamic"), BACKENDS)
def test_torch_compile_without_graph_breaks(backend: str, dynamic: bool | None) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("TorchInductor needs g++, which is not installed")
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    arguments = calls()["verify"], calls()["draft"]
    for actual, expected in zip(compiled(*arguments), step(*arguments), strict=True):
        assert torch.equal(actual, expected)


def redistributed(arguments: dict[str, Any]) -> Tensor:
    q: Tensor = torch.ops.rdk.redistribute(**arguments)
    return q.log().clamp(min=-20)


def gathered(arguments: dict[str, Any]) -> Tensor:
    logits: Tensor = torch.ops.rdk.gather_logits(**arguments)
    return logits * 2


@pytest.mark.parametrize(
    ("operator", "function"), [("redistribute", redistributed), ("gather_logits", gathered)]
)
def test_torch_compile_of_the_others(
    operator: str, function: Callable[[dict[str, Any]], Tensor]
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    arguments = calls()[operator]
    assert torch.equal(compiled(arguments), function(arguments))
