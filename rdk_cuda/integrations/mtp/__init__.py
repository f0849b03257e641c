"""Multi-token heads: the drafters that models bring along in their own files."""

from .checkpoint import read_mtp
from .deep import DeepMtpDrafter
from .drafter import MtpDrafter
from .families import FAMILIES, Family
from .network import MtpNetwork
from .saved import MtpCheckpoint, is_mtp, read_mtp_checkpoint

__all__ = [
    "FAMILIES",
    "DeepMtpDrafter",
    "Family",
    "MtpCheckpoint",
    "MtpDrafter",
    "MtpNetwork",
    "is_mtp",
    "read_mtp",
    "read_mtp_checkpoint",
]
