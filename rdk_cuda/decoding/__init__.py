"""A batched speculative decoder on `rdk_cuda.functional`, and the parts that it is made of."""

from functools import partial as _partial
from typing import TYPE_CHECKING

from .. import moved as _moved
from .decoder import SpeculativeDecoder
from .drafter_tree import DrafterTree
from .exact_match import ExactMatch, TextChain
from .generation import Continuation, Generation, Statistics
from .models import CausalModel, Output, StateDrafter, TreeModel
from .proposal import Proposal, Step
from .proposers import DrafterChain, NGrams, Proposer
from .text import TextDrafter

if not TYPE_CHECKING:
    __getattr__ = _partial(_moved.attribute, __name__)

__all__ = [
    "CausalModel",
    "Continuation",
    "DrafterChain",
    "DrafterTree",
    "ExactMatch",
    "Generation",
    "NGrams",
    "Output",
    "Proposal",
    "Proposer",
    "SpeculativeDecoder",
    "StateDrafter",
    "Statistics",
    "Step",
    "TextChain",
    "TextDrafter",
    "TreeModel",
]
