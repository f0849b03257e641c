"""EAGLE-3 drafters, and EAGLE-2's: layers on the target's own states, as they are published."""

from .checkpoint import Eagle3Checkpoint, is_checkpoint, read_checkpoint
from .drafter import Eagle3Drafter
from .network import Eagle3Config, Eagle3Network
from .saved import load_state_drafter
from .unrolled import read_drafts, unrolled_read
from .weights import CheckpointError

__all__ = [
    "CheckpointError",
    "Eagle3Checkpoint",
    "Eagle3Config",
    "Eagle3Drafter",
    "Eagle3Network",
    "is_checkpoint",
    "load_state_drafter",
    "read_checkpoint",
    "read_drafts",
    "unrolled_read",
]
