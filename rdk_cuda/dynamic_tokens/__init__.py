"""Pruned tokens that a row of logits brings along (DESIGN section 2, "Dynamic tokens")."""

from .columns import TokenHead, dynamic_columns
from .followed import Followed
from .screen import ScreenedTokens, screens_of
from .sources import (
    CombinedTokens,
    Contexts,
    DynamicTokens,
    KeptContexts,
    RecentTokens,
    distinct_tokens,
    offered,
    recent_tokens_of,
    window_of,
    with_recent_bonus,
)
from .successors import SuccessorCounts, SuccessorTable, recent_and_successors

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
    "recent_tokens_of",
    "screens_of",
    "window_of",
    "with_recent_bonus",
]
