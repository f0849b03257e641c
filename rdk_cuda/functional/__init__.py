"""The operators on an `Affinity` and a batch, in place of its tensors and a packed list."""

from .operators import Draft, Verified, draft, gather_logits, redistribute, step_keys, verify

__all__ = ["Draft", "Verified", "draft", "gather_logits", "redistribute", "step_keys", "verify"]
