"""Methods on held-out text, as the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..calibration.methods import FULL, PRUNED, Method
from ..calibration.recording import Each, Read, Window, read_models
from ..drafter import FullHead
from .acceptance import Bootstrap, measure_acceptance, recovered_share
from .rows import EvaluationError, Row, evaluation_row
from .speed import HeadCost, Times, expected_accepted_length, measure_model_times

TIMING_SECONDS = 1.0  # at least; a load that changes shows in the spread

__all__ = ["evaluate", "evaluate_models", "head_cost"]


def evaluate(
    read: Read,
    full_head: FullHead,
    methods: Mapping[float, Sequence[Method]],
    windows: Sequence[Window],
    *,
    draft_length: int,
    drafts_every: int = 1,
    times: Times | None = None,
    head_dtype: torch.dtype | None = None,
    each: Each | None = None,
    seed: int = 0,
    **labels: str,
) -> list[Row]:
    """A row for each method at each temperature, all at the same positions.

    Args:
        methods: for each temperature (0 is greedy) any. The share of the loss that is recovered
            needs the full drafter, and the pruned one with the same `keep`.
        windows: held-out text, all of one length, at least `draft_length`.
        draft_length: K, for the accepted length.
        drafts_every: positions from one draft's begin to the next in what is read. 1: each position
            is read as the first of a draft, which is as any other to an ordinary drafter.
        times: of the models, with the same K; without them no speed-up is predicted.
        head_dtype: of the heads when their bytes are counted; that of `full_head` if absent.
        each: shows the progress over windows.
        labels: further fields of all rows, such as `pair` and `corpus`.

    Raises:
        EvaluationError: acceptance is NaN, because the models' outputs overflow.
    """
    drafters = {at: [method.drafter for method in chosen] for at, chosen in methods.items()}
    reading = windows if each is None else each(windows, "Measuring acceptance: held-out text")
    rates = measure_acceptance(read, full_head, drafters, reading)
    for temperature, measured_rates in rates.items():
        if not bool(measured_rates.isfinite().all()):
            raise EvaluationError(
                f"acceptance at temperature {temperature:g} is NaN; needs models whose logits on "
                "the held-out text are finite, also when divided by the temperature"
            )
    head_dtype = full_head[0].dtype if head_dtype is None else head_dtype
    bootstrap = Bootstrap([window.document for window in windows], seed=seed)
    rows = []
    for temperature, chosen in methods.items():
        measured = dict(zip(((m.name, m.keep) for m in chosen), rates[temperature], strict=True))
        for method, rate in zip(chosen, rates[temperature], strict=True):
            recovered = None
            if method.name not in (FULL, PRUNED) and (FULL, 1.0) in measured:
                pruned = measured[PRUNED, method.keep]
                recovered = recovered_share(bootstrap, rate, pruned, measured[FULL, 1.0])
            columns = method.drafter.mean_dynamic_columns(window.contexts for window in windows)
            cost = head_cost(method, full_head, columns, head_dtype)
            lengths = expected_accepted_length(rate, draft_length)[..., ::drafts_every]
            length = float(lengths.double().mean())
            affinity = method.drafter.affinity
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
                head_rows=affinity.draft_size,
                virtual_rows=affinity.draft_size - method.drafter.vocabulary.draft_size,
                dynamic_columns=columns,
                draft_length=draft_length,
                accepted_length=length,
                head_bytes=cost.bytes_read(),
                head_flops=cost.flops,
                **predicted_speed_up(times, length, cost),
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
    """As `evaluate`, with the models' times on this machine."""
    context = torch.tensor(windows[0].ids[: -draft_length - 1], dtype=torch.int64, device="cpu")
    times = measure_model_times(target, drafter, context, draft_length, seconds=TIMING_SECONDS)
    read = read_models(target, drafter)
    return evaluate(
        read, full_head, methods, windows, draft_length=draft_length, times=times, **options
    )


def predicted_speed_up(
    times: Times | None, accepted_length: float, cost: HeadCost
) -> dict[str, float | str | None]:
    """With its spread and any warning; none if the times contradict each other."""
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
    """For a position."""
    drafter = method.drafter
    return HeadCost(
        *(drafter.affinity.draft_size, full_head[0].shape[1], dtype.itemsize, dynamic_columns),
        screen_bytes=drafter.screen_bytes,
        screen_bytes_each=drafter.screen_bytes_each,
    )
