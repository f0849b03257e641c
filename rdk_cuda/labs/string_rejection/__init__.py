"""String-level rejection sampling for a drafter with a tokenizer of its own."""

from .string_rejection import StringRejection

__all__ = ["StringRejection"]
