"""Sources of dynamic tokens as JSON and tensors, for files that hold a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..vocabulary import Vocabulary
from .sources import CombinedTokens, RecentTokens, is_pruned
from .successors import SuccessorTable

__all__ = ["TENSORS", "described", "source_of"]

_TABLE = {"successors.offsets": "offsets", "successors.tokens": "tokens"}

TENSORS = tuple(_TABLE)
"""Names of all tensors that a description may come with."""


def described(source: object, vocabulary: Vocabulary) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A source as plain data, and the tensors that belong to it.

    Raises:
        ValueError: a source that cannot be described, or one of another vocabulary.
    """
    if isinstance(source, (CombinedTokens, RecentTokens)) and not torch.equal(
        source.allowed.cpu(), is_pruned(vocabulary)
    ):
        raise ValueError(
            f"dynamic_tokens has {type(source).__name__} of another vocabulary; make it from the "
            "drafter's own"
        )
    if isinstance(source, RecentTokens):
        return {"kind": "recent", "width": source.width, "window": source.window}, {}
    if isinstance(source, SuccessorTable):
        tensors = {name: getattr(source, field) for name, field in _TABLE.items()}
        return {"kind": "successors", "width": source.width}, tensors
    if isinstance(source, CombinedTokens):
        parts, tensors = [], {}
        for one in source.sources:
            part, own = described(one, vocabulary)
            if own.keys() & tensors.keys():
                raise ValueError("dynamic_tokens has two tables of successors; a file holds one")
            parts.append(part)
            tensors |= own
        return {"kind": "combined", "width": source.width, "sources": parts}, tensors
    raise ValueError(
        f"dynamic_tokens has a source {type(source).__name__}; a file can hold RecentTokens, a "
        "SuccessorTable and CombinedTokens of these: save the drafter without dynamic_tokens "
        "(dataclasses.replace), and add them after loading"
    )


def source_of(said: Any, vocabulary: Vocabulary, tensors: Mapping[str, Tensor]) -> Any:
    """The source that `described` gave, checked: data and tensors may come from any file.

    Raises:
        ValueError, TypeError, KeyError: they do not describe a source for this vocabulary.
    """
    kind, size = said["kind"], vocabulary.target_size
    width = _count(said, "width", size)  # it decides how much memory a lookup takes
    if kind == "recent":
        return RecentTokens(vocabulary, width, _count(said, "window", 1 << 30))
    if kind == "combined":
        parts = [source_of(part, vocabulary, tensors) for part in said["sources"]]
        return CombinedTokens(parts, vocabulary, width)
    if kind != "successors":
        raise ValueError(f"dynamic_tokens has the kind {kind!r}, which this rdk_cuda does not know")
    own = {field: tensors[name] for name, field in _TABLE.items()}
    table = SuccessorTable(**own, width=width)
    if table.offsets.numel() != size + 1:
        raise ValueError(
            f"the table of successors is for {table.offsets.numel() - 1} tokens; needs the "
            f"drafter's {size} target tokens"
        )
    return table


def _count(said: Mapping[str, Any], name: str, most: int) -> int:
    value = said[name]
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"dynamic_tokens has {name} {value!r}; needs a number from 1 to {most}")
    return value
