"""EAGLE-3 drafters: heads on the target's own hidden states, as they are published."""

from .checkpoint import CheckpointError, Eagle3Checkpoint, read_checkpoint
from .drafter import Eagle3Drafter
from .network import Eagle3Config, Eagle3Network

__all__ = [
    "CheckpointError",
    "Eagle3Checkpoint",
    "Eagle3Config",
    "Eagle3Drafter",
    "Eagle3Network",
    "read_checkpoint",
]
