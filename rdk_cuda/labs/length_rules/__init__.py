"""When drafts end: by the newest token's q, its row's entropy, or the drafter's own confidence."""

from .own_confidence import ConfidentDrafter, OwnConfidence
from .rules import Confidence, EntropyBound

__all__ = ["Confidence", "ConfidentDrafter", "EntropyBound", "OwnConfidence"]
