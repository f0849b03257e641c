"""Multi-token heads: the drafters that models bring along in their own files."""

from functools import partial as _partial
from typing import TYPE_CHECKING

from ... import moved as _moved
from .checkpoint import read_mtp
from .drafter import MtpDrafter
from .families import FAMILIES, Family
from .network import MtpNetwork
from .saved import MtpCheckpoint, is_mtp, load_state_drafter, read_mtp_checkpoint

if not TYPE_CHECKING:
    __getattr__ = _partial(_moved.attribute, "rdk_cuda.integrations.mtp")

__all__ = [
    "FAMILIES",
    "Family",
    "MtpCheckpoint",
    "MtpDrafter",
    "MtpNetwork",
    "is_mtp",
    "load_state_drafter",
    "read_mtp",
    "read_mtp_checkpoint",
]
