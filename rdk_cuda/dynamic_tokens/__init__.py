"""Pruned tokens that a row of logits brings along (DESIGN section 2, "Dynamic tokens")."""

from .columns import TokenHead, dynamic_columns
from .combined import CombinedTokens, recent_and_successors
from .followed import Followed
from .screen import ScreenedTokens, screens_of
from .sources import (
    Contexts,
    DynamicTokens,
    KeptContexts,
    RecentTokens,
    distinct_tokens,
    offered,
    window_of,
)
from .successors import SuccessorCounts, SuccessorTable

__all__ = [
    "CombinedTokens",
    "Contexts",
    "DynamicTokens",
    "Followed",
    "KeptContexts",
    "RecentTokens",
    "ScreenedTokens",
    "SuccessorCounts",
    "SuccessorTable",
    "TokenHead",
    "distinct_tokens",
    "dynamic_columns",
    "offered",
    "recent_and_successors",
    "screens_of",
    "window_of",
]
