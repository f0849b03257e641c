"""Training a drafter on what is accepted of it."""

from ..recipes.stages.train.distill import STEPS_A_ROUND, Distillation, DistillationError, Recipe
from ..recipes.stages.train.losses import LOSSES, OverlapLoss, redistributed
from ..recipes.stages.train.parts import ALL, HEAD, PARTS, VIRTUAL_ROWS

__all__ = [
    "ALL",
    "HEAD",
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
