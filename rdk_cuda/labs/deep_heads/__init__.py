"""Multi-token heads of several layers, one for each place of a draft."""

from .drafter import DeepMtpDrafter, read_layers

__all__ = ["DeepMtpDrafter", "read_layers"]
