"""A pruned drafter as it is saved and served: its head, its affinity and its dynamic tokens."""

from .drafter import PrunedDrafter, SavedDrafterError
from .heads import FullHead, prune_head
from .lifted import LiftedHead, LiftedRows

__all__ = [
    "FullHead",
    "LiftedHead",
    "LiftedRows",
    "PrunedDrafter",
    "SavedDrafterError",
    "prune_head",
]
