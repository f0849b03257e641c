"""A batched speculative decoder on `rdk_cuda.functional`."""

from .decoder import SpeculativeDecoder
from .generation import Generation, Statistics
from .models import CausalModel, Output, StateDrafter

__all__ = [
    "CausalModel",
    "Generation",
    "Output",
    "SpeculativeDecoder",
    "StateDrafter",
    "Statistics",
]
