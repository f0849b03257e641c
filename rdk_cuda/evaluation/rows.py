"""The results of an evaluation: a row for each drafter, as CSV and as JSON.

    pair, corpus          the models, and the held-out text that they were measured on
    calibrated_on         the corpus of the calibration text
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

from rdk_cuda.evaluation.acceptance import Interval

from ..files import read_json, write_csv, write_json

__all__ = [
    "FIELDS",
    "EvaluationError",
    "Row",
    "evaluation_row",
    "read_evaluation",
    "write_evaluation",
]

FORMAT, FORMAT_VERSION = "rdk_cuda.evaluation", 1

TIMED = ("speed_up", "speed_up_low", "speed_up_high", "doubt")  # of this moment and machine

FIELDS = (
    *("pair", "corpus", "calibrated_on", "temperature", "keep", "method"),
    *("head_rows", "virtual_rows", "dynamic_columns"),
    *("acceptance", "acceptance_low", "acceptance_high"),
    *("recovered", "recovered_low", "recovered_high"),
    *("draft_length", "accepted_length", "head_bytes", "head_flops"),
    *TIMED,
    *("positions", "windows", "documents", "tuned"),
)


class EvaluationError(ValueError):
    """A file that is no evaluation, or figures that make none."""


Row = dict[str, Any]
"""A value or None for each of `FIELDS`."""


def evaluation_row(
    acceptance: Interval, recovered: Interval | None, **others: str | float | None
) -> Row:
    """A row, with None for what is not given.

    Raises:
        ValueError: a name that is not one of `FIELDS`.

    Example:
        >>> row = evaluation_row(Interval(0.5, 0.4, 0.6), None, method="full drafter", keep=1.0)
        >>> row["acceptance_low"], row["recovered"], row["keep"], row["speed_up"]
        (0.4, None, 1.0, None)
    """
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
    """Write `path`, which is JSON, and the same rows as CSV next to it, each whole or not at all.

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


def read_evaluation(path: Path) -> dict[str, Any]:
    """The content of a JSON file of `write_evaluation`.

    Raises:
        EvaluationError: another file, or one that cannot be read.
    """
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path}: is no evaluation ({error}); name another file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise EvaluationError(f"{path}: is no evaluation; name a file that `evaluate` wrote")
    if content.get("format_version") != FORMAT_VERSION:
        raise EvaluationError(
            f"{path}: has format version {content.get('format_version')}; needs {FORMAT_VERSION}, "
            "so evaluate again"
        )
    return content
