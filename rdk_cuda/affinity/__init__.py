"""The token affinity: the target tokens that each drafter token stands for (DESIGN section 2)."""

from .affinity import Affinity
from .validation import AffinityError

__all__ = ["Affinity", "AffinityError"]
