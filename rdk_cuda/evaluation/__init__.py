"""What a drafter is worth on held-out text: acceptance, accepted length, speed-up."""

from .acceptance import Bootstrap, Interval, measure_acceptance, recovered_share
from .rows import EvaluationError, evaluate, write_evaluation
from .speed import HeadCost, Times, expected_accepted_length, measure_model_times

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
