"""Multi-token heads: the drafters that models bring along in their own files."""

from .checkpoint import read_mtp
from .deep import DeepMtpDrafter
from .drafter import MtpDrafter
from .families import FAMILIES, Family
from .network import MtpNetwork

__all__ = [
    "FAMILIES",
    "DeepMtpDrafter",
    "Family",
    "MtpDrafter",
    "MtpNetwork",
    "read_mtp",
]
