"""The operators on an `Affinity` and a batch, in place of its tensors and a packed list."""

from .operators import draft, gather_logits, redistribute, step_keys, verify
from .step import Draft, Verified

__all__ = ["Draft", "Verified", "draft", "gather_logits", "redistribute", "step_keys", "verify"]
