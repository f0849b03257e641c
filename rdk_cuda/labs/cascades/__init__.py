"""Drafters that are themselves decoded speculatively."""

from .cascade import Cascade

__all__ = ["Cascade"]
