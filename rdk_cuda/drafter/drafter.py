"""A pruned drafter: its head, its affinity and its dynamic tokens, in memory and in a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._ops.inputs import check_entries, check_tensor
from ..affinity import Affinity
from ..affinity.file import canonical_of
from ..affinity.validation import CANONICAL
from ..dynamic_tokens import Contexts, DynamicTokens, dynamic_columns, offered, screens_of
from ..dynamic_tokens.description import TENSORS, described, source_of
from ..files import FLOATS, TensorFile, json_of
from ..vocabulary import Vocabulary
from .heads import FullHead, prune_head
from .lifted import LiftedRows

_LONGEST_DESCRIPTION = 1000  # characters; each source that is described takes V_t bytes


class SavedDrafterError(ValueError):
    """A file or directory that is not a drafter, or parts that do not make one. Says which."""

    @property
    def reason(self) -> str:
        """The message without the name of the function, for the command line."""
        return re.sub(r"^(PrunedDrafter\.\w+|load_\w+|save_\w+): ", "", str(self))


_AFFINITY = {f"affinity.{name}": name for name in CANONICAL}
_LIFTED = {f"lifted.{own}": own for own in ("map", "log_prior", "shift")}
_FILE = TensorFile(
    "PrunedDrafter",
    "rdk_cuda.pruned_drafter",
    1,
    ("weight", "kept", *_AFFINITY),
    SavedDrafterError,
    optional=("bias", *_LIFTED, *TENSORS),
)


@dataclass(frozen=True, eq=False)
class PrunedDrafter:
    """All that a drafter with a small head needs besides its model.

    Attributes:
        vocabulary: the tokens that its head keeps.
        affinity: from its V_d rows, virtual ones included, to the target's tokens.
        weight, bias: the head, `[V_d, d]`, and `[V_d]` or None.
        dynamic_tokens: a source such as `rdk_cuda.RecentTokens`, or None.
        lifted: what gives pruned tokens logits where the drafter never had rows for them, or None.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> vocabulary = Vocabulary([0, 2], target_size=4)
        >>> affinity = Affinity.intersection(vocabulary)
        >>> drafter = PrunedDrafter(vocabulary, affinity, torch.ones(2, 3))
        >>> with TemporaryDirectory() as folder:
        ...     drafter.save(f"{folder}/drafter.safetensors")
        ...     loaded = PrunedDrafter.load(f"{folder}/drafter.safetensors")
        >>> loaded.vocabulary == vocabulary
        True
    """

    vocabulary: Vocabulary
    affinity: Affinity
    weight: Tensor
    bias: Tensor | None = None
    dynamic_tokens: DynamicTokens | None = None
    lifted: LiftedRows | None = None

    @classmethod
    def plain(cls, full_head: FullHead, vocabulary: Vocabulary) -> PrunedDrafter:
        """Return the kept rows of the full head, without redistribution."""
        head = prune_head(*full_head, vocabulary)
        return cls(vocabulary, Affinity.intersection(vocabulary), *head)

    def in_dtype(self, dtype: torch.dtype) -> PrunedDrafter:
        """Return the same drafter with a head of this dtype."""
        bias = None if self.bias is None else self.bias.to(dtype)
        return replace(self, weight=self.weight.to(dtype), bias=bias)

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file atomically; `load` gives the same drafter back."""
        self.check("PrunedDrafter.save")
        tensors = {"weight": self.weight.detach(), "kept": self.vocabulary.draft_ids}
        tensors |= {name: getattr(self.affinity, own) for name, own in _AFFINITY.items()}
        if self.bias is not None:
            tensors["bias"] = self.bias.detach()
        if self.lifted is not None:
            tensors |= {name: getattr(self.lifted, own) for name, own in _LIFTED.items()}
        affinity = self.affinity
        said: dict[str, object] = {
            "draft_size": affinity.draft_size,
            "target_size": affinity.target_size,
        }
        if self.dynamic_tokens is not None:
            try:
                description, own = described(self.dynamic_tokens, self.vocabulary)
            except ValueError as error:
                raise SavedDrafterError(f"PrunedDrafter.save: {error}") from error
            said["dynamic_tokens"] = json.dumps(description)
            tensors |= own
        _FILE.write(Path(path), tensors, said)

    @classmethod
    def load(cls, path: str | PathLike[str], device: torch.device | str = "cpu") -> PrunedDrafter:
        """Read what `save` wrote, check all of it, and move it to `device`."""
        path = Path(path)
        tensors, metadata = _FILE.read(path)
        text = metadata.get("dynamic_tokens")
        try:
            own = {own: tensors[name] for name, own in _AFFINITY.items()}
            affinity = Affinity(**canonical_of(own, metadata))
            vocabulary = Vocabulary(tensors["kept"], affinity.target_size)
            if text is not None and len(text) > _LONGEST_DESCRIPTION:
                raise ValueError(f"dynamic_tokens takes {len(text)} characters, which is too many")
            source = lifted = None
            if _LIFTED.keys() & tensors.keys():
                parts: dict[str, Any] = {
                    own: tensors[name].to(device) for name, own in _LIFTED.items()
                }
                lifted = LiftedRows(**parts)
            if text is not None:
                source = source_of(json_of(text), vocabulary, tensors, device)
        except (ValueError, TypeError, KeyError) as error:
            reason = f"lacks {error}" if isinstance(error, KeyError) else error
            raise SavedDrafterError(f"PrunedDrafter.load: {path}: {reason}") from error
        bias = tensors.get("bias")
        drafter = cls(
            vocabulary,
            affinity.to(device),
            tensors["weight"].to(device),
            None if bias is None else bias.to(device),
            source,
            lifted,
        )
        drafter.check(f"PrunedDrafter.load: {path}")
        return drafter

    @property
    def screen_bytes(self) -> int:
        """Count the bytes that the screens among its dynamic tokens read, once for a batch."""
        return sum(screen.bytes for screen in screens_of(self.dynamic_tokens))

    def check(self, name: str) -> None:
        """Refuse a head, an affinity and kept tokens of different drafters."""
        weight, bias, rows = self.weight, self.bias, self.affinity.draft_size
        error = SavedDrafterError
        check_tensor(f"{name}: the head's weight", weight, FLOATS, rows, "d", error=error)
        if bias is not None:
            check_tensor(f"{name}: the head's bias", bias, weight.dtype, rows, error=error)
        if not all(bool(part.isfinite().all()) for part in (weight, bias) if part is not None):
            raise SavedDrafterError(f"{name}: the head is not finite; needs finite numbers")
        if self.lifted is not None:
            self._check_lifted(name, self.lifted)
        for screen in screens_of(self.dynamic_tokens):
            if screen.right.shape[1] != weight.shape[1]:
                raise SavedDrafterError(
                    f"{name}: a screen is of width {screen.right.shape[1]}; needs that of the "
                    f"head, {weight.shape[1]}"
                )
        kept, targets = self.vocabulary, self.affinity.target_size
        if kept.target_size != targets or kept.draft_size > rows:
            raise SavedDrafterError(
                f"{name}: the kept tokens are {kept.draft_size} of {kept.target_size}, but the "
                f"affinity maps {rows} drafter tokens to {targets}; needs kept tokens of the same "
                "target, and a row for each"
            )

    def _check_lifted(self, name: str, lifted: LiftedRows) -> None:
        shapes = ("d_t + 2", self.weight.shape[1]), (self.affinity.target_size,), (2,)
        for part, shape in zip(("map", "log_prior", "shift"), shapes, strict=True):
            tensor, own = getattr(lifted, part), f"{name}: {part} of the lifted rows"
            check_tensor(own, tensor, torch.float32, *shape, error=SavedDrafterError)
            check_entries(own, tensor, tensor.isfinite(), "finite numbers", SavedDrafterError)

    def columns(self, full_head: FullHead, hidden: Tensor, contexts: Contexts) -> dict[str, Tensor]:
        """Make arguments of `draft` and `redistribute`: `draft_logits`, and dynamic columns if any.

        Args:
            full_head: for the logits of dynamic tokens.
            hidden: `[n, d]`, the drafter's last hidden state after each of the contexts.
            contexts: n sequences of target ids, or `[n, w]`, newest last, -1 for none.
        """
        columns = {"draft_logits": torch.nn.functional.linear(hidden, self.weight, self.bias)}
        if self.dynamic_tokens is not None:
            named = dynamic_columns(self.dynamic_tokens, full_head, contexts, hidden)
            columns["dynamic_tokens"], columns["dynamic_logits"] = named
        return columns

    def mean_dynamic_columns(self, contexts: Iterable[Contexts]) -> float:
        """Return the mean number of dynamic tokens after each of the contexts.

        A screen fills its columns at any position, so it is asked without the hidden states.
        """
        if self.dynamic_tokens is None:
            return 0.0
        hidden = self.weight.new_zeros(1, self.weight.shape[1])
        used = [
            offered(self.dynamic_tokens, some, hidden.expand(len(some), -1)) >= 0
            for some in contexts
        ]
        return float(torch.cat(used).sum(1).double().mean())
