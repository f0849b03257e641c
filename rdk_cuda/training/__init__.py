"""Training a drafter on what is accepted of it."""

from .distill import STEPS_A_ROUND, Distillation, DistillationError, Recipe
from .losses import LOSSES, OverlapLoss, redistributed
from .parts import ALL, HEAD, LIFTED_ROWS, PARTS, VIRTUAL_ROWS

__all__ = [
    "ALL",
    "HEAD",
    "LIFTED_ROWS",
    "LOSSES",
    "PARTS",
    "STEPS_A_ROUND",
    "VIRTUAL_ROWS",
    "Distillation",
    "DistillationError",
    "OverlapLoss",
    "Recipe",
    "redistributed",
]
