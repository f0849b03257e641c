"""Block drafters, DFlash's and DSpark's: all places of a draft from one pass."""

from functools import partial as _partial
from typing import TYPE_CHECKING

from ... import moved as _moved
from .checkpoint import read_block_drafter
from .drafter import BlockDrafter
from .network import BlockConfig, BlockNetwork

if not TYPE_CHECKING:
    __getattr__ = _partial(_moved.attribute, "rdk_cuda.integrations.block_drafters")

__all__ = ["BlockConfig", "BlockDrafter", "BlockNetwork", "read_block_drafter"]
