"""Measure a drafter on held-out text: acceptance, accepted length, speed-up."""

from ..recipes.report.evaluation import EvaluationError, evaluate, measure_acceptance
from ..recipes.report.rows import Bootstrap, Interval, recovered_share, write_evaluation
from ..recipes.timing import HeadCost, Times, expected_accepted_length, measure_model_times

__all__ = [
    "Bootstrap",
    "EvaluationError",
    "HeadCost",
    "Interval",
    "Times",
    "evaluate",
    "expected_accepted_length",
    "measure_acceptance",
    "measure_model_times",
    "recovered_share",
    "write_evaluation",
]
