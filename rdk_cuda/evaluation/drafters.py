"""Methods on held-out text, as the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rdk_cuda.calibration.drafter import FullHead
from rdk_cuda.calibration.methods import FULL, PRUNED, Method
from rdk_cuda.calibration.recording import Each
from rdk_cuda.calibration.recording.reading import Read, read_models
from rdk_cuda.calibration.recording.windows import Window
from rdk_cuda.evaluation.acceptance import Bootstrap, measure_acceptance, recovered_share
from rdk_cuda.evaluation.speed import (
    HeadCost,
    Times,
    expected_accepted_length,
    measure_model_times,
)

from .rows import EvaluationError, Row, evaluation_row

TIMING_SECONDS = 1.0  # at least; a load that comes and goes shows in the spread

__all__ = ["evaluate", "evaluate_models", "head_cost"]


def evaluate(
    read: Read,
    full_head: FullHead,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    *,
    draft_length: int,
    times: Times | None = None,
    head_dtype: torch.dtype | None = None,
    each: Each | None = None,
    seed: int = 0,
    **labels: str,
) -> list[Row]:
    """A row for each method at each temperature, all at the same positions.

    Args:
        methods: for each temperature, 0 for greedy, the full drafter and any others. The share of
            the loss that is recovered needs the pruned drafter of the same `keep` among them.
        windows: held-out text, all of one length, at least `draft_length`.
        draft_length: K, for the accepted length.
        times: of the models, with the same K; without them no speed-up is predicted.
        head_dtype: what the bytes of heads are counted in; that of `full_head` if absent.
        each: shows the progress over windows.
        labels: further fields of all rows, such as `pair` and `corpus`.
    """
    drafters = {at: [method.drafter for method in chosen] for at, chosen in methods.items()}
    reading = windows if each is None else each(windows, "Measuring acceptance: held-out text")
    rates = measure_acceptance(read, full_head, drafters, reading)
    refuse_nan(rates)
    head_dtype = full_head[0].dtype if head_dtype is None else head_dtype
    bootstrap = Bootstrap([window.document for window in windows], seed=seed)
    rows = []
    for temperature, chosen in methods.items():
        measured = dict(zip(((m.name, m.keep) for m in chosen), rates[temperature], strict=True))
        for method, rate in zip(chosen, rates[temperature], strict=True):
            recovered = None
            if method.name not in (FULL, PRUNED):
                pruned = measured[PRUNED, method.keep]
                recovered = recovered_share(bootstrap, rate, pruned, measured[FULL, 1.0])
            columns = method.drafter.mean_dynamic_columns(windows)
            row = evaluation_row(
                bootstrap.mean(rate),
                recovered,
                temperature=temperature,
                keep=method.keep,
                method=method.name,
                tuned=method.tuned,
                positions=rate.numel(),
                windows=len(windows),
                documents=len(bootstrap.members),
                **figures(method, full_head, rate, columns, draft_length, times, head_dtype),
                **labels,
            )
            rows.append(row)
    return rows


def evaluate_models(
    target: Any,
    drafter: Any,
    full_head: FullHead,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    *,
    draft_length: int,
    **options: Any,
) -> list[Row]:
    """As `evaluate`, with what the models' passes take on this machine."""
    context = torch.tensor(windows[0].ids[: -draft_length - 1], dtype=torch.int64, device="cpu")
    times = measure_model_times(target, drafter, context, draft_length, seconds=TIMING_SECONDS)
    read = read_models(target, drafter)
    return evaluate(
        read, full_head, methods, windows, draft_length=draft_length, times=times, **options
    )


def refuse_nan(rates: Mapping[float, Tensor]) -> None:
    """Of models whose outputs overflow, or temperatures at which they do."""
    for temperature, measured in rates.items():
        if not bool(measured.isfinite().all()):
            raise EvaluationError(
                f"acceptance at temperature {temperature:g} is NaN; needs models whose logits on "
                "the held-out text are finite, also when divided by the temperature"
            )


def figures(
    method: Method,
    full_head: FullHead,
    rates: Tensor,
    dynamic_columns: float,
    draft_length: int,
    times: Times | None,
    head_dtype: torch.dtype,
) -> dict[str, float | str | None]:
    """What a method costs, and what its acceptance is worth."""
    cost = head_cost(method, full_head, dynamic_columns, head_dtype)
    length = float(expected_accepted_length(rates, draft_length).double().mean())
    affinity, vocabulary = method.drafter.affinity, method.drafter.vocabulary
    return {
        "head_rows": affinity.draft_size,
        "virtual_rows": affinity.draft_size - vocabulary.draft_size,
        "dynamic_columns": dynamic_columns,
        "draft_length": draft_length,
        "accepted_length": length,
        "head_bytes": cost.bytes_read(),
        "head_flops": cost.flops,
        **predicted_speed_up(times, length, cost),
    }


def predicted_speed_up(
    times: Times | None, accepted_length: float, cost: HeadCost
) -> dict[str, float | str | None]:
    """With its spread, and what speaks against it; none where the times contradict each other."""
    if times is None:
        return {}
    if times.contradiction is not None:
        return {"doubt": f"No speed-up is predicted: {times.contradiction}. Measure again."}
    value, low, high = times.speed_up_spread(accepted_length, cost)
    figures = {"speed_up": value, "speed_up_low": low, "speed_up_high": high}
    return {**figures, "doubt": times.doubt}


def head_cost(
    method: Method, full_head: FullHead, dynamic_columns: float, dtype: torch.dtype
) -> HeadCost:
    """Of a position; a low-rank head counts as its factors, not as the matrix they make."""
    size, width = full_head[0].shape
    rank = method.rank
    return HeadCost(
        rows=method.drafter.affinity.draft_size if rank is None else round(method.keep * size),
        hidden_size=width,
        bytes_each=dtype.itemsize,
        dynamic_columns=dynamic_columns,
        factored_rows=0 if rank is None else size - round(method.keep * size),
        rank=rank or 0,
    )
