"""An evaluation: a row for each drafter, measured on held-out text, as CSV and as JSON.

    temperature           0 for greedy
    keep                  share of the vocabulary that the head keeps, 1 for the full drafter
    method, tuned         as of `rdk_cuda.calibration.methods`, and what calibration chose, in words
    head_rows             V_d, `virtual_rows` of them virtual
    dynamic_columns       mean of a position
    acceptance            mean of `sum_x min(p, q)`, with the ends of its 95 % interval
    recovered             share of the acceptance lost to pruning that comes back, likewise
    accepted_length       expected number of accepted drafts, of `draft_length`
    head_bytes            bytes of weights that the head reads for a position, as they are saved
    head_flops            floating-point operations of the head for a position
    speed_up              predicted, over the target alone: the median over rounds of measuring,
                          with the ends of the middle 80 %
    doubt                 a warning, if the times (and so the speed-up) should not be trusted
    positions, windows, documents
                          what was measured on

A figure that does not apply is empty in the CSV file and null in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..calibration.methods import FULL, PRUNED, Method
from ..calibration.reading import Read, Window
from ..calibration.recording import Each
from ..drafter import FullHead
from ..files import write_csv, write_json
from .acceptance import Bootstrap, Interval, measure_acceptance, recovered_share
from .speed import HeadCost, Times, expected_accepted_length

FORMAT, FORMAT_VERSION = "rdk_cuda.evaluation", 1

TIMED = ("speed_up", "speed_up_low", "speed_up_high", "doubt")  # of this moment and machine

FIELDS = (
    *("temperature", "keep", "method"),
    *("head_rows", "virtual_rows", "dynamic_columns"),
    *("acceptance", "acceptance_low", "acceptance_high"),
    *("recovered", "recovered_low", "recovered_high"),
    *("draft_length", "accepted_length", "head_bytes", "head_flops"),
    *TIMED,
    *("positions", "windows", "documents", "tuned"),
)


class EvaluationError(ValueError):
    """Figures that make no evaluation."""


Row = dict[str, Any]
"""A value or None for each of `FIELDS`."""


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
) -> list[Row]:
    """A row for each method at each temperature (0 is greedy), all at the same positions.

    Args:
        methods: the share of the loss that is recovered needs the full drafter, and the pruned one
            with the same `keep`.
        windows: held-out text, all of one length, at least `draft_length`.
        draft_length: K, for the accepted length.
        drafts_every: positions from one draft's begin to the next in what is read. 1: each position
            is read as the first of a draft, which is as any other to an ordinary drafter.
        times: of the models, with the same K; without them no speed-up is predicted.
        head_dtype: of the heads when their bytes are counted; that of `full_head` if absent.
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
            )
            rows.append(row)
    return rows


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


def evaluation_row(
    acceptance: Interval, recovered: Interval | None, **others: str | float | None
) -> Row:
    """A row, with None for what is not given; a name that is not one of `FIELDS` is refused."""
    unknown = sorted(others.keys() - set(FIELDS))
    if unknown:
        raise ValueError(f"evaluation_row: got {unknown[0]!r}; needs one of {', '.join(FIELDS)}")
    row: Row = {**dict.fromkeys(FIELDS), **others}
    for name, interval in (("acceptance", acceptance), ("recovered", recovered)):
        if interval is not None:
            row |= {name: interval.value}
            row |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
    return row


def write_evaluation(rows: Sequence[Row], about: Mapping[str, Any], path: Path) -> Path:
    """Write `path`, which is JSON, and the same rows as CSV next to it, each atomically.

    Args:
        about: how the rows came about: settings, versions, corpora.

    Returns:
        The path of the CSV file.
    """
    table = path.with_suffix(".csv")
    header = {"format": FORMAT, "format_version": FORMAT_VERSION}
    write_csv(rows, FIELDS, table)
    write_json({**header, **about, "rows": list(rows)}, path)
    return table
