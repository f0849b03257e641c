"""The operators on an `Affinity` and a batch, in place of its tensors and a packed list."""

from . import operators as _operators
from .operators import *  # noqa: F403  its __all__
from .overlap import overlap
from .rows import StepRows
from .step import METHODS, Draft, Method, Verified
from .verify_tree import VerifiedTree, verify_tree

__all__ = [
    "METHODS",
    "Draft",
    "Method",
    "StepRows",
    "Verified",
    "VerifiedTree",
    "overlap",
    "verify_tree",
]
__all__ += _operators.__all__
