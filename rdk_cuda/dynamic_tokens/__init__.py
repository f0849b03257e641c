"""Pruned tokens that a row of logits brings along (DESIGN section 2, "Dynamic tokens")."""

from .sources import CombinedTokens, Contexts, DynamicTokens, RecentTokens, distinct_tokens
from .successors import SuccessorCounts, SuccessorTable, recent_and_successors

__all__ = [
    "CombinedTokens",
    "Contexts",
    "DynamicTokens",
    "RecentTokens",
    "SuccessorCounts",
    "SuccessorTable",
    "distinct_tokens",
    "recent_and_successors",
]
