"""Sources of dynamic tokens as JSON and tensors, for files that hold a drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import whole_number
from ..vocabulary import Vocabulary
from .combined import CombinedTokens
from .screen import ScreenedTokens
from .sources import RecentTokens, is_pruned
from .successors import SuccessorTable

_TABLE = {"successors.offsets": "offsets", "successors.tokens": "tokens"}

_SCREEN = {f"screen.{name}": name for name in ("tokens", "left", "scale", "right")}
_BIAS = "screen.bias"  # which a screen may have

TENSORS = (*_TABLE, *_SCREEN, _BIAS)
"""Names of all tensors that a description may come with."""

_KINDS = {"recent": {"window"}, "successors": set(), "screened": set(), "combined": {"sources"}}
"""Facts of a source of each kind beside its kind and width."""


def described(source: object, vocabulary: Vocabulary) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Describe a source as plain data, and name the tensors that belong to it."""
    other = False
    if isinstance(source, ScreenedTokens):
        other = not torch.equal(source.tokens.cpu(), vocabulary.pruned.int())
    elif isinstance(source, (CombinedTokens, RecentTokens)):
        other = not torch.equal(source.allowed.cpu(), is_pruned(vocabulary))
    if other:
        raise ValueError(
            f"dynamic_tokens has {type(source).__name__} of another vocabulary; use the drafter's"
        )
    if isinstance(source, RecentTokens):
        return {"kind": "recent", "width": source.width, "window": source.window}, {}
    if isinstance(source, SuccessorTable):
        tensors = {name: getattr(source, field) for name, field in _TABLE.items()}
        return {"kind": "successors", "width": source.width}, tensors
    if isinstance(source, ScreenedTokens):
        tensors = {name: getattr(source, field) for name, field in _SCREEN.items()}
        if source.bias is not None:
            tensors[_BIAS] = source.bias
        return {"kind": "screened", "width": source.width}, tensors
    if isinstance(source, CombinedTokens):
        parts, tensors = [], {}
        for one in source.sources:
            part, own = described(one, vocabulary)
            if own.keys() & tensors.keys():
                raise ValueError(
                    "dynamic_tokens has two tables or two screens; a file holds one of each"
                )
            parts.append(part)
            tensors |= own
        return {"kind": "combined", "width": source.width, "sources": parts}, tensors
    raise ValueError(
        f"dynamic_tokens has a source {type(source).__name__}; a file can hold RecentTokens, a "
        "SuccessorTable, ScreenedTokens and CombinedTokens of these: add others after loading"
    )


def source_of(
    said: Any,
    vocabulary: Vocabulary,
    tensors: Mapping[str, Tensor],
    device: torch.device | str = "cpu",
) -> Any:
    """Make the source of `described`, checked: data and tensors may come from any file.

    Args:
        device: where it is made, and where its results are.
    """
    kind, size = said["kind"], vocabulary.target_size
    width = _count(said, "width", size)  # it decides how much memory a lookup takes
    if kind not in _KINDS:
        raise ValueError(f"dynamic_tokens has the kind {kind!r}, which this rdk_cuda does not know")
    if unknown := sorted(said.keys() - {"kind", "width"} - _KINDS[kind]):
        raise ValueError(
            f"dynamic_tokens of kind {kind} has {unknown[0]!r}, which this rdk_cuda does not know; "
            "calibrate again"
        )
    if kind == "recent":
        window = _count(said, "window", 1 << 30)
        return RecentTokens(vocabulary, width, window, device=device)
    if kind == "combined":
        parts = [source_of(part, vocabulary, tensors, device) for part in said["sources"]]
        return CombinedTokens(parts, vocabulary, width, device=device)
    if kind == "screened":
        tokens = tensors["screen.tokens"]
        if tokens.dtype != torch.int32 or not torch.equal(tokens, vocabulary.pruned.int()):
            raise ValueError("the screen is of other tokens than the drafter's pruned ones")
        own: dict[str, Any] = {field: tensors[name] for name, field in _SCREEN.items()}
        return ScreenedTokens(**own, bias=tensors.get(_BIAS), width=width).to(device)
    table = SuccessorTable(**{field: tensors[name] for name, field in _TABLE.items()}, width=width)
    if table.offsets.numel() != size + 1:
        raise ValueError(
            f"the table of successors is for {table.offsets.numel() - 1} tokens; needs {size}"
        )
    return table.to(device)


def _count(said: Mapping[str, Any], name: str, most: int) -> int:
    return whole_number("dynamic_tokens", name, said[name], 1, most)
