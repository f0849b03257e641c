"""Training a drafter on what is accepted of it."""

from .distill import (
    ALL,
    HEAD,
    LIFTED_ROWS,
    STEPS_A_ROUND,
    VIRTUAL_ROWS,
    Distillation,
    DistillationError,
    Recipe,
)
from .losses import LOSSES, OverlapLoss, redistributed

__all__ = [
    "ALL",
    "HEAD",
    "LIFTED_ROWS",
    "LOSSES",
    "STEPS_A_ROUND",
    "VIRTUAL_ROWS",
    "Distillation",
    "DistillationError",
    "OverlapLoss",
    "Recipe",
    "redistributed",
]
