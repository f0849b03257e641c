"""What a drafter is worth on held-out text: acceptance, accepted length, speed-up."""

from .acceptance import Bootstrap, Interval, acceptance, measure_acceptance, recovered_share
from .drafters import evaluate, evaluate_models
from .rows import EvaluationError, read_evaluation, write_evaluation
from .speed import HeadCost, Times, expected_accepted_length, measure_model_times, speed_up

__all__ = [
    "Bootstrap",
    "EvaluationError",
    "HeadCost",
    "Interval",
    "Times",
    "acceptance",
    "evaluate",
    "evaluate_models",
    "expected_accepted_length",
    "measure_acceptance",
    "measure_model_times",
    "read_evaluation",
    "recovered_share",
    "speed_up",
    "write_evaluation",
]
