"""When drafts end, by the newest token's q and by the entropy of its row."""

from .rules import Confidence, EntropyBound

__all__ = ["Confidence", "EntropyBound"]
