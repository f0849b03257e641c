"""Whether float64 has to decide what an operator decides of a call, and whether it does."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import reference
from rdk_cuda._ops.contract import LIMITS, LOGITS, OPERATORS, Sizes
from tests.tolerances import BOUNDARY

Outputs = tuple[Tensor, ...]
Arguments = dict[str, Any]

# Logits beyond this are rounded so coarsely in float32 that float64 may rightly draw another token.
COMPARABLE = 64.0
COMPARED_ALWAYS = ("gather_logits", "name_tokens", "overlap", "overlap_backward", "step_keys")
COMPARED_ALWAYS += ("sum_shard",)
SUM_TO_ONE = 1e-5


class BrokenPromiseError(Exception):
    """An output that the contract rules out."""


def require(condition: bool | Tensor, promise: str) -> None:
    if not bool(condition):
        raise BrokenPromiseError(promise)


def require_form(name: str, output: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    require(output.dtype == dtype, f"{name} is {output.dtype}, not {dtype}")
    require(tuple(output.shape) == shape, f"{name} is {list(output.shape)}, not {list(shape)}")


def has_distribution(logits: Tensor, temperature: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Section 4, "Columns of a softmax": rows ``[n, V]``, temperatures ``[n]``, to bool ``[n]``."""
    scale = temperature[:, None]
    logits = logits.float()
    quotient = logits / torch.where(scale == 0, 1.0, scale)
    z = quotient + torch.where(scale == 0, torch.as_tensor(bias).clamp(max=0, min=-math.inf), bias)
    # At temperature 0 a bias only masks.
    z = torch.where((scale == 0) & (torch.as_tensor(bias) > -math.inf), logits, z)
    bad = logits.isnan() | (logits == math.inf) | (logits.isfinite() & quotient.isinf())
    bad |= z.isnan() | (z == math.inf)
    usable = (temperature >= 0) & (temperature < math.inf)
    return usable & ~bad.any(1) & z.isfinite().any(1)


def draft_rows(arguments: Arguments, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Static and used dynamic logits ``[n, V_d + C]``, temperatures ``[n]``, bias ``[V_d + C]``."""
    static = arguments["draft_logits"].reshape(math.prod(sizes["..."]), sizes["V_d"]).float()
    name = "temperature" if "temperature" in arguments else "draft_temperature"
    temperature = arguments[name].reshape(-1)
    bias, tokens = arguments["bias"], arguments["dynamic_tokens"]
    if bias is None:
        bias = torch.zeros(sizes["V_d"])
    if tokens is None:
        return static, temperature, bias
    shape = (static.shape[0], sizes["C"])
    tokens = tokens.reshape(shape)
    unused = (tokens < 0) | (tokens >= sizes["V_t"])
    values = arguments["dynamic_logits"].reshape(shape).float().masked_fill(unused, -math.inf)
    return torch.cat([static, values], 1), temperature, torch.cat([bias, bias.new_zeros(shape[1])])


def comparable(operator: str, arguments: Arguments, sizes: Sizes) -> bool:
    """Whether float64 computes nearly the same logits, so that it has to draw the same tokens."""
    if operator in COMPARED_ALWAYS or not logits_are_comparable(operator, arguments):
        return False
    if operator == "verify_shard" and not sums_are_comparable(arguments):
        return False
    stats = arguments.get("draft_stats")
    if stats is None:
        return True
    # Stats are believed, and these are not always those of their rows.
    rows = stats.shape[:-1]
    as_drafted = arguments | {"temperature": torch.ones(rows)}
    good = has_distribution(*draft_rows(as_drafted, sizes | {"...": rows}))
    return bool(good.all()) and bool((stats.isfinite() & (stats.abs() < 10)).all())


def sums_are_comparable(arguments: Arguments) -> bool:
    """Whether ranks may have made them."""
    sums, residuals = arguments["sums"], arguments["residuals"]
    largest, second = sums[:, :, :-1][~sums[:, :, :-1].isnan().any(-1)].T
    sound = (largest < COMPARABLE) & (second >= 0) & (second < 1025)
    within = residuals is None or bool(((residuals >= 0) & (residuals <= 1)).all())
    return bool(sound.all()) and bool((sums[:, :, -1, 1] == 0).all()) and within


def logits_are_comparable(operator: str, arguments: Arguments) -> bool:
    """Whether float32 rounds none of them coarsely."""
    tensors = OPERATORS[operator].tensors
    read = [name for name, rule in tensors.items() if rule.dtypes == LOGITS and not rule.written]
    for name in read:
        scale = "target_temperature" if name == "target_logits" else "draft_temperature"
        temperatures = arguments[scale if scale in tensors else "temperature"]
        if temperatures is None:
            continue  # and so are the logits
        coldest = min((t for t in temperatures.flatten().tolist() if t > 0), default=1.0)
        if arguments[name] is not None:
            logits = arguments[name].float()
            largest = logits[logits.isfinite()].abs().max() if logits.isfinite().any() else 0.0
            if largest / min(coldest, 1.0) > COMPARABLE:
                return False
    return True


def agrees_with_the_reference(operator: str, arguments: Arguments, outputs: Outputs) -> None:
    """In float64, but for draws that float64 shows to be near a boundary."""
    function = getattr(reference, operator)
    if outputs[0].is_floating_point():
        exact = function(**arguments, dtype=torch.float64)
        close = torch.allclose(outputs[0].double(), exact, rtol=1e-4, atol=1e-7, equal_nan=True)
        require(close, f"{next(iter(OPERATORS[operator].results))} is not that of the reference")
        return
    trace = reference.Trace()
    expected = function(**arguments, dtype=torch.float64, trace=trace)
    expected = expected if isinstance(expected, tuple) else (expected,)
    different = outputs[0] != expected[0]
    different = different.reshape(-1) if operator.startswith("draft") else different.any(1)
    clear = trace.margins(different.numel()) > BOUNDARY
    require(not (different & clear).any(), "a token is not that of the reference")
    if operator in ("draft", "draft_step"):
        # The reference has written its own of a step into the arguments.
        whole = operator == "draft"
        stats, exact = outputs[1 if whole else 2], expected[1] if whole else arguments["step_stats"]
        close = torch.allclose(stats.double(), exact.double(), 1e-5, 1e-6, equal_nan=True)
        require(close, "stats are not those of the reference")
        if any(arguments[name] is not None for name in LIMITS):
            cut, exact = (each[..., -1].float().nan_to_num(7.0) for each in (stats, exact))
            require(torch.equal(cut, exact), "a threshold is not that of the reference")
    if arguments.get("logprobs"):
        found, exact = (each[2][~different] for each in (outputs, expected))
        close = torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-4, equal_nan=True)
        require(close, "a log-probability is not that of the reference")
