"""Block drafters, DFlash's and DSpark's: all places of a draft from one pass."""

from .checkpoint import read_block_drafter
from .drafter import BlockDrafter, Confidence
from .network import BlockConfig, BlockNetwork

__all__ = ["BlockConfig", "BlockDrafter", "BlockNetwork", "Confidence", "read_block_drafter"]
