"""Pruned tokens that a row of logits brings along (DESIGN section 2, "Dynamic tokens")."""

from .screen import ScreenedTokens, screens_of
from .sources import (
    CombinedTokens,
    Contexts,
    DynamicTokens,
    RecentTokens,
    distinct_tokens,
    offered,
    reads_hidden,
)
from .successors import SuccessorCounts, SuccessorTable, recent_and_successors

__all__ = [
    "CombinedTokens",
    "Contexts",
    "DynamicTokens",
    "RecentTokens",
    "ScreenedTokens",
    "SuccessorCounts",
    "SuccessorTable",
    "distinct_tokens",
    "offered",
    "reads_hidden",
    "recent_and_successors",
    "screens_of",
]
