"""The token affinity: the target tokens that each drafter token stands for (DESIGN section 2)."""

from .affinity import Affinity, AffinityError

__all__ = ["Affinity", "AffinityError"]
