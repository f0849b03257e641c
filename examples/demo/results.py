"""The demo's results as plain data: the rows of its two tables."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from rdk_cuda.recipes.report.rows import Bootstrap, Interval, Row, evaluation_row, recovered_share
from rdk_cuda.recipes.stages.pruning import FULL, PRUNED

from .decoding import Decoded, Ours
from .experiment import Measured


def acceptance_rows(measured: Measured, bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """How much of a draft is accepted, and what comes back of what pruning loses."""
    methods, rates, rows = measured.methods, measured.rates, []
    baseline = {m.keep: rate for m, rate in zip(methods, rates, strict=True) if m.name == PRUNED}
    contexts = [window.contexts for window in measured.windows]
    for method, rate in zip(methods, rates, strict=True):
        share = None
        if method.name not in (FULL, PRUNED):
            share = recovered_share(bootstrap, rate, baseline[method.keep], rates[0])
        rows.append(
            {
                "method": method.name,
                "keep": method.keep,
                "head_rows": method.drafter.affinity.draft_size,
                "dynamic_columns": method.drafter.mean_dynamic_columns(contexts),
                "acceptance": plain(bootstrap.mean(rate)),
                "recovered": plain(share),
                "tuned": method.tuned,
            }
        )
    return rows


def speed_rows(measured: Measured) -> list[dict[str, Any]]:
    """How fast each way decodes in each case; relative to the target alone in the same round."""
    return [
        {
            "way": way.name,
            "temperature": case.temperature,
            "batch": case.batch,
            "draft_length": way.chosen.get(case) if isinstance(way, Ours) else None,
            "chosen": way is measured.chosen[case],
            **speed_figures(one, decoded[0]),
        }
        for case, decoded in measured.decoded.items()
        for way, one in zip(measured.ways, decoded, strict=True)
    ]


def speed_figures(run: Decoded, alone: Decoded) -> dict[str, Any]:
    """A row's figures."""
    ratios = [ours / theirs for ours, theirs in zip(run.speeds, alone.speeds, strict=True)]
    return {
        "tokens_per_second": sum(run.rounds) / sum(run.seconds),
        "relative_speed": {"value": median(ratios), "low": min(ratios), "high": max(ratios)},
        "target_passes_per_token": run.target_passes_per_token,
        "out_of_vocabulary_tokens": sum(one.out_of_vocabulary for one in run.statistics),
        "tokens": sum(run.rounds),
        "seconds": sum(run.seconds),
        "model_seconds": run.model_seconds,
    }


def plotted(rows: Sequence[dict[str, Any]], temperature: float) -> list[Row]:
    """Rows of acceptance as those of an evaluation, which is what plots take."""
    return [
        evaluation_row(
            Interval(**row["acceptance"]),
            row["recovered"] and Interval(**row["recovered"]),
            temperature=temperature,
            **{name: row[name] for name in ("method", "keep", "head_rows", "dynamic_columns")},
        )
        for row in rows
    ]


def plain(interval: Interval | None) -> dict[str, float] | None:
    """An interval as plain data."""
    return None if interval is None else interval._asdict()
