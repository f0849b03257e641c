"""A batched speculative decoder on `rdk_cuda.functional`."""

from .decoder import CausalModel, Output, SpeculativeDecoder
from .generation import Generation, Statistics

__all__ = ["CausalModel", "Generation", "Output", "SpeculativeDecoder", "Statistics"]
