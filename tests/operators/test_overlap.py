"""`rdk::overlap` is the acceptance rate, and `rdk::overlap_backward` its gradient."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import reference
from rdk_cuda._ops.contract import OPERATORS
from rdk_cuda.affinity import Affinity
from rdk_cuda.reference.operators import target_distribution
from tests import generators
from tests.tolerances import assert_as_exact_as_torch

pytestmark = pytest.mark.usefixtures("device")

TARGET, DRAFT = [1.0, 0.5, 2.0, 0.0, 1.0], [1.0, 0.7, 1.3, 1.0, 0.8]


def call(
    affinity: Affinity,
    dynamic: int | None = 9,
    dtype: torch.dtype = torch.float32,
    target_dtype: torch.dtype | None = None,
) -> dict[str, Any]:
    """Five rows, of a greedy target among others."""
    rows, v_t = len(TARGET), affinity.target_size
    columns: dict[str, Tensor] = {}
    if dynamic is not None:
        columns["dynamic_tokens"] = generators.dynamic_tokens(rows, dynamic, v_t)
        columns["dynamic_logits"] = generators.logits(rows, dynamic, seed=1, dtype=dtype)
    return {
        "target_logits": generators.logits(
            rows, v_t, seed=2, dtype=target_dtype or dtype, forbidden=0.1
        ),
        "draft_logits": generators.logits(rows, affinity.draft_size, dtype=dtype, forbidden=0.1),
        "target_temperature": torch.tensor(TARGET),
        "draft_temperature": torch.tensor(DRAFT),
        **tensors_of("overlap", affinity),
        **columns,
    }


def tensors_of(operator: str, affinity: Affinity) -> dict[str, Tensor | None]:
    """What an operator takes of it, by name."""
    rules = OPERATORS[operator].tensors
    return {name: getattr(affinity, name) for name, rule in rules.items() if rule.affinity}


def rows_of(affinity: Affinity, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """p and q in float64."""
    p = [
        target_distribution(row, float(at), reference.Limits(), None, torch.float64)
        for row, at in zip(arguments["target_logits"], arguments["target_temperature"], strict=True)
    ]
    q = reference.redistribute(
        arguments["draft_logits"],
        arguments["draft_temperature"],
        *affinity.by_target,
        affinity.row_top,
        arguments.get("dynamic_tokens"),
        arguments.get("dynamic_logits"),
        dtype=torch.float64,
    )
    return torch.stack([row for row in p if row is not None]), q


def backward_call(
    affinity: Affinity, arguments: dict[str, Any], below: Tensor, stats: Tensor
) -> dict[str, Any]:
    given = ("draft_logits", "draft_temperature", "dynamic_tokens", "dynamic_logits")
    return {
        "grad": torch.linspace(-1, 2, len(TARGET)),
        "below": below,
        "stats": stats,
        **tensors_of("overlap_backward", affinity),
        **{name: arguments[name] for name in given if name in arguments},
    }


def assert_exact(affinity: Affinity, **given: Any) -> None:
    """Both operators, against float64 and PyTorch's own float32."""
    arguments = call(affinity, **given)
    alpha, below, stats = torch.ops.rdk.overlap(**arguments)
    exact, bits, exact_stats = reference.overlap(**arguments, dtype=torch.float64)
    in_float32 = reference.overlap(**arguments)
    assert_as_exact_as_torch(alpha, in_float32[0], exact)
    assert_as_exact_as_torch(stats, in_float32[2], exact_stats)
    # Only a token with p and q next to each other may be on the other side.
    p, q = rows_of(affinity, arguments)
    bits = below[..., None] >> torch.arange(32, dtype=torch.int32) & 1
    wrong = (bits.flatten(1)[:, : affinity.target_size] == 1) != (q < p)
    assert ((p - q).abs() <= 1e-5 * p)[wrong].all()
    assert bits.sum() == bits.flatten(1)[:, : affinity.target_size].sum()  # others are 0
    backward = backward_call(affinity, arguments, below, stats)
    with_exact = backward | {"stats": exact_stats}
    results = zip(
        torch.ops.rdk.overlap_backward(**backward),
        reference.overlap_backward(**backward),
        reference.overlap_backward(**with_exact, dtype=torch.float64),
        strict=True,
    )
    for actual, float32, float64 in results:
        assert actual.dtype == arguments["draft_logits"].dtype
        # A difference of masses, so relative to the larger: at most 1.
        error = (actual.double() - float64).abs().max() if actual.numel() else 0.0
        rounding = torch.finfo(actual.dtype).eps
        own = (float32.double() - float64).abs().max() if actual.numel() else 0.0
        scale = float(float64.abs().max()) if actual.numel() else 0.0
        assert error <= 4 * own + rounding * scale + 1e-7


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    for dynamic in (None, 9):
        assert_exact(affinity, dynamic=dynamic, dtype=dtype)


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 1023, 1024, 1025, 2049, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-3"])
def test_sizes_around_words_lanes_and_chunks(kind: str, size: int) -> None:
    assert_exact(generators.affinity(kind, size), dynamic=40)


def dense_alpha(affinity: Affinity, arguments: dict[str, Any]) -> Tensor:
    """By definition, in dense algebra and float64; a greedy target has no temperature."""
    columns = {name: arguments.get(name) for name in ("dynamic_tokens", "dynamic_logits")}
    z = arguments["draft_logits"] / arguments["draft_temperature"][:, None]
    z = z + (0.0 if affinity.bias is None else affinity.bias.double())
    used = torch.zeros(len(z), 0, dtype=torch.int64)
    if columns["dynamic_logits"] is not None:
        used = columns["dynamic_tokens"].long()
        unused = (used < 0) | (used >= affinity.target_size)
        dynamic = columns["dynamic_logits"] / arguments["draft_temperature"][:, None]
        z = torch.cat([z, dynamic.masked_fill(unused, -math.inf)], 1)
        used = used.masked_fill(unused, 0)
    draft_probs = z.softmax(1)
    q = draft_probs[:, : affinity.draft_size] @ affinity.dense().double()
    q = q.scatter_add(1, used, draft_probs[:, affinity.draft_size :])
    at = arguments["target_temperature"][:, None]
    p = (arguments["target_logits"].double() / at.where(at > 0, 1e-9)).softmax(1)
    return reference.acceptance_rate(p, q)


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("kind", generators.AFFINITIES)
def test_autograd_of_the_dense_form_gives_the_same_gradient(kind: str) -> None:
    """And the Python function's, of both kinds of logits, at temperatures of their own."""
    affinity = generators.affinity(kind, 300)
    arguments = call(affinity)
    names = ("draft_logits", "dynamic_logits")
    exact = {name: arguments[name].double().requires_grad_() for name in names}
    leaves = {name: arguments[name].clone().requires_grad_() for name in names}
    weights = torch.linspace(-1, 2, len(TARGET))
    expected = dense_alpha(affinity, arguments | exact)
    (expected * weights).sum().backward()
    alpha = rdk_cuda.overlap(
        arguments["target_logits"],
        leaves["draft_logits"],
        affinity,
        TARGET,
        draft_temperature=DRAFT,
        dynamic_tokens=arguments["dynamic_tokens"],
        dynamic_logits=leaves["dynamic_logits"],
    )
    (alpha * weights).sum().backward()
    torch.testing.assert_close(alpha.double(), expected, rtol=0, atol=1e-6)
    for name in names:
        found, gradient = leaves[name].grad, exact[name].grad
        torch.testing.assert_close(found.double(), gradient, rtol=0, atol=2e-7)


def test_equal_rows_overlap_wholly_and_have_no_gradient() -> None:
    """q = p is a tie everywhere: no token has q < p."""
    affinity = generators.affinity("identity", 500)
    logits = generators.logits(3, 500)
    alpha, below, _ = torch.ops.rdk.overlap(
        logits, logits, torch.ones(3), torch.ones(3), *affinity.by_target
    )
    torch.testing.assert_close(alpha, torch.ones(3))
    assert (below == 0).all()


def test_what_has_no_gradient_is_refused() -> None:
    affinity = generators.affinity("identity", 5)
    rows = torch.zeros(2, 5)
    with pytest.raises(RuntimeError, match="target_logits requires grad"):
        rdk_cuda.overlap(rows.clone().requires_grad_(), rows, affinity)
    tokens = torch.tensor([[3, -1], [2, 2]], dtype=torch.int32)
    trained = rows.clone().requires_grad_(), torch.zeros(2, 2, requires_grad=True)
    for draft, own in (trained, (trained[0], rows[:, :2]), (rows, trained[1])):
        columns = {"dynamic_tokens": tokens, "dynamic_logits": own}
        alpha = rdk_cuda.overlap(rows, draft, affinity, **columns).sum()
        by = draft if draft.requires_grad else own
        (first,) = torch.autograd.grad(alpha, by, create_graph=True)
        with pytest.raises(RuntimeError, match=r"rdk_cuda\.overlap: a second derivative"):
            (alpha + first.square().sum()).backward()
