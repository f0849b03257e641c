"""The target token that each drafter token is, and the bytes of a tokenizer's tokens."""

from .vocabulary import Vocabulary

__all__ = ["Vocabulary"]
