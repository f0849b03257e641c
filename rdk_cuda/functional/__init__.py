"""The operators on an `Affinity` and a batch, in place of its tensors and a packed list."""

from .operators import draft, gather_logits, redistribute, step_keys, verify
from .step import METHODS, Draft, Method, Verified
from .trees import VerifiedTree, verify_tree

__all__ = [
    "METHODS",
    "Draft",
    "Method",
    "Verified",
    "VerifiedTree",
    "draft",
    "gather_logits",
    "redistribute",
    "step_keys",
    "verify",
    "verify_tree",
]
