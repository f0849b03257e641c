"""The operators are citizens of PyTorch: opcheck, fake tensors, torch.compile without breaks."""

from __future__ import annotations

import pydoc
import shutil
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import rdk_cuda.shards
from rdk_cuda import reference
from rdk_cuda._ops.contract import LIMITS, OPERATORS
from tests import generators
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


def without_optional(operator: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Of an affinity all tensors belong together: its bias goes with all of them or stays."""
    rules = OPERATORS[operator].tensors
    whole = all(rule.optional for rule in rules.values() if rule.affinity)
    optional = [n for n, rule in rules.items() if rule.optional and (whole or not rule.affinity)]
    without = arguments | dict.fromkeys(optional)
    for name in [name for name, rule in rules.items() if "limited" in rule.shape]:
        without[name] = without[name][..., :-1].contiguous()
    return without


def outputs(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck(operator: str) -> None:
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    for given in (arguments, without_optional(operator, arguments)):
        torch.library.opcheck(packet.default, tuple(given.values()))


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
    for operator, described in OPERATORS.items()
    for name, value in (calls()[operator].items() if described.loses_gradients else ())
    if isinstance(value, Tensor) and value.is_floating_point() and name not in LIMITS
]


@pytest.mark.parametrize(("operator", "name"), DIFFERENTIABLE)
def test_a_gradient_that_would_be_lost_is_refused(operator: str, name: str) -> None:
    packet = getattr(torch.ops.rdk, operator)
    arguments = calls()[operator]
    expected = outputs(packet(**arguments))
    leaf = arguments[name].clone().requires_grad_()
    for tensor in (leaf, leaf * 1, leaf[:]):
        refused, message = refusal(operator, {**arguments, name: tensor})
        assert refused == name
        assert f"rdk_cuda.reference.{operator}, which has one" in message
        for outside in (torch.no_grad, torch.inference_mode):
            with outside():
                found = outputs(packet(**{**arguments, name: tensor}))
                assert all(map(torch.equal, found, expected))
        found = outputs(packet(**{**arguments, name: tensor.detach()}))
        assert all(map(torch.equal, found, expected))


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


def summed(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda tensor: function(tensor).sum()


TRANSFORMS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(summed(f))(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "hessian": lambda f, x: torch.func.hessian(summed(f))(x),
    "grad of grad, of the outer argument": lambda f, x: torch.func.grad(
        lambda y: torch.func.grad(lambda z: (z * f(y).sum()).sum())(y).sum()
    )(x),
    "compiled grad": lambda f, x: torch.compile(torch.func.grad(summed(f)), backend="aot_eager")(x),
}


@pytest.mark.parametrize(
    "transform",
    [
        pytest.param(name, marks=pytest.mark.ci if name in ("compiled grad", "hessian") else ())
        for name in TRANSFORMS
    ],
)
@pytest.mark.parametrize(("operator", "name"), DIFFERENTIABLE)
def test_a_transform_that_would_lose_a_gradient_is_refused(
    operator: str, name: str, transform: str
) -> None:
    torch._dynamo.reset()
    packet, arguments = getattr(torch.ops.rdk, operator), calls()[operator]

    def function(tensor: Tensor) -> Tensor:
        return outputs(packet(**{**arguments, name: tensor}))[0]

    needs = f"{operator}: {name} (requires grad|has a tangent), but needs"
    with pytest.raises(RuntimeError, match=needs):
        TRANSFORMS[transform](function, arguments[name])
    TRANSFORMS[transform](lambda x: x * function(x.detach()).sum(), arguments[name])  # passes


def test_what_no_transform_tracks_is_a_constant_to_it() -> None:
    arguments = calls()["gather_logits"]

    def gather(hidden: Tensor, tokens: Tensor) -> Tensor:
        given = {**arguments, "hidden": hidden, "tokens": tokens}
        result: Tensor = torch.ops.rdk.gather_logits(**given)
        return result

    def constant(hidden: Tensor, tokens: Tensor) -> Tensor:
        return (hidden * gather(hidden.detach(), tokens).sum()).sum()

    given = arguments["hidden"], arguments["tokens"]
    each = gather(*given)
    assert torch.equal(torch.vmap(gather)(*given), each)
    slopes = torch.vmap(torch.func.grad(constant))(*given)
    assert torch.equal(slopes, each.sum(1, keepdim=True).expand_as(slopes))
    _, tangent = torch.func.jvp(lambda x: constant(x, given[1]), given[:1], given[:1])
    assert torch.equal(tangent, constant(*given))


TANGENTS = [("redistribute", name) for name in ("draft_logits", "temperature", "dynamic_logits")]
TANGENTS += [("gather_logits", name) for name in ("hidden", "weight", "bias")]


@pytest.mark.parametrize(("operator", "name"), TANGENTS)
def test_the_python_layer_refuses_tangents(operator: str, name: str) -> None:
    given = calls()[operator]
    if operator == "redistribute":
        names = ("draft_logits", "temperature", "dynamic_tokens", "dynamic_logits")
        given = {each: given[each].to("cpu") for each in names}
        given["affinity"] = generators.affinity("mixed-2", 40)
    function = getattr(rdk_cuda, operator)
    tensor = given.pop(name)
    with (
        forward_ad.dual_level(),
        pytest.raises(RuntimeError, match=f"{operator}: {name} has a tangent, but needs"),
    ):
        function(**given, **{name: forward_ad.make_dual(tensor, torch.ones_like(tensor))})


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
        for key, value in test_refusals.calls()[operator].items()
    }
    arguments["bias"] = torch.zeros_like(arguments["bias"])
    function = getattr(reference, operator)
    tensor = arguments[name].clone().requires_grad_()

    def of(given: Tensor) -> Tensor:
        return outputs(function(**{**arguments, name: given}, dtype=torch.float64))[0]

    assert torch.autograd.gradcheck(of, (tensor,), fast_mode=True)


@pytest.mark.parametrize("operator", OPERATORS)
def test_help_says_where_to_look(operator: str) -> None:
    text = pydoc.plain(pydoc.render_doc(getattr(torch.ops.rdk, operator)))
    function = operator.removesuffix("_backward").removesuffix("_step")
    function = "shards.verify" if operator.endswith("_shard") else function
    function = "CombinedTokens" if operator == "name_tokens" else function
    assert f"help(rdk_cuda.{function})" in text
    assert callable(attrgetter(function)(rdk_cuda))
    assert callable(getattr(reference, operator))
    assert f"rdk::{operator}(Tensor" in text
    assert "docs/design.md" in text
