"""The operators are citizens of PyTorch: opcheck, fake tensors, torch.compile without breaks."""

from __future__ import annotations

import pydoc
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import reference
from tests.devices import CPU_OR_CUDA, PLACE
from tests.gpu.stand_in import moved
from tests.operators import test_refusals
from tests.operators.test_refusals import refusal

DEVICE = torch.device("cpu")


@pytest.fixture(params=CPU_OR_CUDA, autouse=True)
def _calls_on_the_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No stand-in for the operators, which PyTorch would not know: their arguments are there."""
    if request.param == "cuda":
        if not PLACE:
            pytest.skip("no GPU")
        place = torch.device("cuda", 0) if PLACE == "cuda" else torch.device("cpu")
        monkeypatch.setitem(globals(), "DEVICE", place)


def calls() -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = moved(test_refusals.calls(), DEVICE)
    return made


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
    keys = torch.ops.rdk.step_keys(verify["step_keys"], verify["positions"])
    each = keys.repeat_interleave(2)
    tokens, stats = torch.ops.rdk.draft(**{**draft, "step_keys": each})
    target = verify["target_logits"] - verify["target_logits"].amax(-1, keepdim=True)
    tokens, num_accepted, _ = torch.ops.rdk.verify(
        **{
            **verify,
            "target_logits": target,
            "draft_token_ids": tokens,
            "draft_stats": stats,
            "step_keys": keys,
        }
    )
    return tokens.clamp(min=0), num_accepted + 1


def redistributed(arguments: dict[str, Any]) -> Tensor:
    q: Tensor = torch.ops.rdk.redistribute(**arguments)
    return q.log().clamp(min=-20)


def gathered(arguments: dict[str, Any]) -> Tensor:
    logits: Tensor = torch.ops.rdk.gather_logits(**arguments)
    return logits * 2


COMPILED: list[tuple[Callable[..., Any], tuple[str, ...], str, bool | None]] = [
    (step, ("verify", "draft"), "aot_eager", None),
    (step, ("verify", "draft"), "aot_eager", True),
    pytest.param(step, ("verify", "draft"), "inductor", None, marks=pytest.mark.ci),
    (redistributed, ("redistribute",), "aot_eager", None),
    (gathered, ("gather_logits",), "aot_eager", None),
]


@pytest.mark.parametrize(("function", "operators", "backend", "dynamic"), COMPILED)
def test_torch_compile_without_graph_breaks(
    function: Callable[..., Any], operators: tuple[str, ...], backend: str, dynamic: bool | None
) -> None:
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("TorchInductor needs g++, which is not installed")
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    arguments = [calls()[operator] for operator in operators]
    expected = outputs(function(*arguments))
    assert all(map(torch.equal, outputs(compiled(*arguments)), expected))


DIFFERENTIABLE = [
    (operator, name)
    for operator in ("redistribute", "gather_logits")
    for name, value in calls()[operator].items()
    if isinstance(value, Tensor) and value.is_floating_point()
]


@pytest.mark.parametrize(("operator", "name"), DIFFERENTIABLE)
def test_a_gradient_that_would_be_lost_is_refused(operator: str, name: str) -> None:
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    expected = packet(**arguments)
    leaf = arguments[name].clone().requires_grad_()
    for tensor in (leaf, leaf * 1, leaf[:]):
        refused, message = refusal(operator, {**arguments, name: tensor})
        assert refused == name
        assert f"rdk_cuda.reference.{operator}, which has one" in message
        for outside in (torch.no_grad, torch.inference_mode):
            with outside():
                assert torch.equal(packet(**{**arguments, name: tensor}), expected)
        assert torch.equal(packet(**{**arguments, name: tensor.detach()}), expected)


@pytest.mark.parametrize(
    ("operator", "name"), [DIFFERENTIABLE[0], DIFFERENTIABLE[3], *DIFFERENTIABLE[-2:]]
)
def test_a_gradient_that_would_be_lost_is_refused_by_a_compiler(operator: str, name: str) -> None:
    torch._dynamo.reset()
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    arguments[name] = arguments[name].clone().requires_grad_()
    compiled = torch.compile(lambda given: packet(**given) * 2, backend="aot_eager")
    with pytest.raises(RuntimeError, match=f"{name} requires grad, but needs"):
        compiled(arguments)
    with torch.no_grad():
        assert torch.equal(compiled(arguments), packet(**arguments) * 2)


@pytest.mark.parametrize("operator", ["draft", "verify"])
def test_tokens_are_drawn_from_logits_that_require_grad(operator: str) -> None:
    packet, arguments = getattr(torch.ops.rdk, operator), calls()[operator]
    expected = packet(**arguments)
    for name in {"target_logits", "draft_logits"} & set(arguments):
        arguments[name] = arguments[name].clone().requires_grad_()
    result = packet(**arguments)
    assert all(map(torch.equal, result, expected))
    assert not any(output.requires_grad for output in result)


@pytest.mark.parametrize(("operator", "name"), DIFFERENTIABLE)
def test_the_reference_has_the_gradients(operator: str, name: str) -> None:
    """Against differences, in float64; no token is masked, since -inf does not differ."""
    arguments = {
        key: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for key, value in calls()[operator].items()
    }
    arguments["bias"] = torch.zeros_like(arguments["bias"])
    function = getattr(reference, operator)
    tensor = arguments[name].clone().requires_grad_()

    def of(given: Tensor) -> Tensor:
        result: Tensor = function(**{**arguments, name: given}, dtype=torch.float64)
        return result

    assert torch.autograd.gradcheck(of, (tensor,), fast_mode=True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_help_says_where_to_look(operator: str) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(torch.ops.rdk, operator)))
    assert f"help(rdk_cuda.{operator})" in text
    assert callable(getattr(rdk_cuda, operator))
    assert callable(getattr(reference, operator))
    assert f"rdk::{operator}(Tensor" in text
    assert "docs/design.md" in text
