"""The results that the operators of a decoding step hand on: the draft, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from .._ops.contract import COLUMNS
from .._ops.inputs import (
    Integers,
    check_shape,
    check_tensor,
    step_keys_and_positions,
    takes_arrays,
)
from ..affinity import Affinity
from .rows import StepRows

Method = Literal["token", "block"]
"""How `verify` judges a step's drafts: one by one, or together."""

METHODS: dict[Method, int] = {"token": 0, "block": 1}
"""As `torch.ops.rdk.verify` counts them."""


LOGPROBS = {None: 0, "processed": 1, "raw": 2}
"""The kinds of log-probabilities, as `torch.ops.rdk.verify` counts them."""


def method_number(function: str, method: Method) -> int:
    """Return the operators' number of a method."""
    if method not in METHODS:
        raise ValueError(f'{function}: method is {method!r}; needs "token" or "block"')
    return METHODS[method]


class Verified(NamedTuple):
    """The result of `verify`.

    Attributes:
        tokens: `[B, K + 1]` int64, the accepted drafts, then one drawn token, then -1.
        num_accepted: `[B]` int32.
        logprobs: `[B, K + 1]` float32, the log-probability of each token, `-inf` where there is
            none; of size 0 if they were not asked for.
    """

    tokens: Tensor
    num_accepted: Tensor
    logprobs: Tensor


@dataclass(frozen=True, eq=False)
class Draft:
    """Drafted tokens and what `verify` needs of them: the drafter's own logits, nothing wider.

    Attributes:
        tokens: `[B, K]` int64 target ids; -1 ends a sequence's draft.
        logits: `[B, K, V_d]`, or None for drafts without a distribution. The caller's own tensor:
            what it holds may not change before `verify`; or those that `rows` keep.
        stats: `[B, K, 2 + R]` float32, (max, sum, spread mass...) of the drafter's softmax, or
            None; `[B, K, 3 + R]` of truncated drafts.
        temperature: `[B]` float32, the drafter's.
        step_keys: `[B]` int64, the keys of this step (`step_keys` of the user's seeds).
        positions: `[B]` int64, the absolute position of the step's first token.
        offset: how many tokens of the step were drafted before these.
        dynamic_tokens, dynamic_logits: `[B, K, C]`, or None.
        limits: top-k, top-p and min-p of the drafter, `[B]` each, or None. If any is there, the
            last of `stats` is where the row was cut.
        rows: where all that was drafted into given `StepRows` lies, until a later step fills them.
    """

    tokens: Tensor
    logits: Tensor | None = field(repr=False)
    stats: Tensor | None = field(repr=False)
    temperature: Tensor
    step_keys: Tensor
    positions: Tensor
    offset: int = 0
    dynamic_tokens: Tensor | None = field(default_factory=lambda: None, repr=False)
    dynamic_logits: Tensor | None = field(default_factory=lambda: None, repr=False)
    limits: tuple[Tensor | None, ...] = (None, None, None)
    rows: StepRows | None = field(default=None, init=False, repr=False)  # not of `replace`

    def __getattr__(self, name: str) -> Any:
        """Look up in `rows` what lies there: it is seldom asked for."""
        if name not in ("logits", "stats", "dynamic_tokens", "dynamic_logits"):
            raise AttributeError(f"Draft has no attribute {name!r}")
        self.refuse_if_filled_again()
        memory = getattr(self.__dict__["rows"], name)
        end = self.offset + self.tokens.shape[1]
        return None if memory is None else memory[:, self.offset : end]

    def refuse_if_filled_again(self) -> None:
        """Raise RuntimeError where its rows hold another step by now."""
        if self.rows is not None and self.rows.step is not self.__dict__["step"]:
            raise RuntimeError(
                "Draft: its StepRows are filled by a later step; verify before the next step drafts"
            )

    def proposing(self, tokens: Tensor) -> Draft:
        """Take other tokens `[B, K]` for the same rows, such as -1 where a sequence's draft ends.

        Raises:
            ValueError: tokens of another shape than the draft's own.
        """
        check_shape("Draft.proposing: tokens", tokens, *self.tokens.shape)
        changed = object.__new__(Draft)
        changed.__dict__.update(self.__dict__, tokens=tokens)
        return changed

    @classmethod
    def of_rows(cls, rows: StepRows, offset: int, tokens: Tensor) -> Draft:
        """Make a draft of what was drafted into some rows in their present step."""
        made = object.__new__(cls)
        own = made.__dict__
        own.update(rows.shared)
        own["rows"], own["offset"], own["tokens"] = rows, offset, tokens
        return made

    @classmethod
    @takes_arrays
    def without_distribution(
        cls, tokens: Tensor, *, seeds: Integers | None = None, positions: Integers | None = None
    ) -> Draft:
        """Make a draft of fixed tokens, such as n-grams and copies: q is one-hot on each.

        Args:
            tokens: `[B, K]` integer target ids; -1 ends a sequence's draft.
            seeds, positions: as in `draft`.

        Example:
            >>> import torch, rdk_cuda
            >>> copied = rdk_cuda.Draft.without_distribution(
            ...     torch.tensor([[3, 1]]), seeds=7, positions=12)
            >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(5))
            >>> tokens, accepted, _ = rdk_cuda.verify(torch.zeros(1, 3, 5), copied, affinity)
        """
        check_shape("Draft.without_distribution: tokens", tokens, "B", "K")
        name, batch, device = "Draft.without_distribution", tokens.shape[0], tokens.device
        keys, first = step_keys_and_positions(name, seeds, positions, batch, device)
        temperature = torch.zeros(batch, device=device, dtype=torch.float32)
        return cls(tokens.long(), None, None, temperature, keys, first)

    @classmethod
    def join(cls, drafts: Sequence[Draft]) -> Draft:
        """The drafts of one step, each made with `after=` the one before, as one `[B, K]` draft."""
        if not isinstance(drafts, Sequence) or not all(isinstance(part, Draft) for part in drafts):
            raise TypeError(
                f"Draft.join: drafts is a {type(drafts).__name__}; needs Drafts, in order"
            )
        if not drafts:
            raise ValueError("Draft.join: drafts is empty; needs at least one Draft")
        first, last = drafts[0], drafts[-1]
        for part in drafts:
            part.refuse_if_filled_again()
        if last.rows is not None and last.rows.hold(drafts):
            tokens = last.rows.tokens[:, first.offset : last.offset + 1]
            return cls.of_rows(last.rows, first.offset, tokens)
        length = first.offset
        for index, part in enumerate(drafts):
            # after= hands on the tensors themselves.
            other = part.step_keys is not first.step_keys and not torch.compiler.is_compiling()
            if other or part.offset != length:
                raise ValueError(
                    f"Draft.join: drafts[{index}] follows {part.offset} tokens of "
                    f"{'another' if other else 'its'} step, but {length} come before it; make each "
                    "with after= the one before it, in order"
                )
            length += part.tokens.shape[1]

        def joined(name: str) -> Tensor | None:
            parts = [getattr(part, name) for part in drafts]
            if any(part is None for part in parts):
                if any(part is not None for part in parts):
                    raise ValueError(f"Draft.join: only some of the drafts have {name}")
                return None
            if len({part.shape[2:] for part in parts}) > 1:
                raise ValueError(
                    f"Draft.join: {name} have the shapes {[list(part.shape) for part in parts]}; "
                    "all need the same last dimension (fill up dynamic tokens with -1)"
                )
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

        return cls(
            tokens=cast(Tensor, joined("tokens")),
            logits=joined("logits"),
            stats=joined("stats"),
            temperature=first.temperature,
            step_keys=first.step_keys,
            positions=first.positions,
            offset=first.offset,
            dynamic_tokens=joined("dynamic_tokens"),
            dynamic_logits=joined("dynamic_logits"),
            limits=first.limits,
        )


def affinity_columns(affinity: Affinity) -> dict[str, Tensor | None]:
    """Name the tensors of an affinity that operators which verify take."""
    return dict(zip(COLUMNS, affinity.by_target, strict=True))


def packed(tensor: Tensor | None) -> Tensor | None:
    """Pack the rows of a batch as one list."""
    return None if tensor is None else tensor.flatten(0, 1).contiguous()


def packed_step(
    draft: Draft,
    affinity: Affinity,
    target_logits: Tensor,
    temperature: Tensor,
    offsets: Tensor,
    draft_rows: Tensor | None,
    max_draft: int,
) -> dict[str, Tensor | int | None]:
    """Name what operators that verify take of packed drafts, up to the limits.

    Args:
        draft: its tokens may be packed already, `[N]`.
        temperature: `[B]`, the target's.
        offsets: `[B + 1]`, where the drafts of each sequence are.
        draft_rows: `[N]`, which of the draft's rows, counted through the batch, each is drawn from.
    """
    return {
        "target_logits": target_logits,
        "draft_logits": packed(draft.logits),
        "draft_stats": packed(draft.stats),
        "draft_rows": draft_rows,
        "draft_token_ids": draft.tokens.flatten().contiguous(),
        "draft_offsets": offsets,
        "target_temperature": temperature,
        "draft_temperature": draft.temperature,
        "step_keys": draft.step_keys,
        "positions": draft.positions,
        **affinity_columns(affinity),
        "max_draft": max_draft,
        "dynamic_tokens": packed(draft.dynamic_tokens),
        "dynamic_logits": packed(draft.dynamic_logits),
    }


def packed_rows(function: str, rows: Tensor, shape: tuple[int, int], each: int) -> Tensor:
    """Count the rows of each sequence through the batch; none stays none."""
    check_tensor(f"{function}: draft_rows", rows, "integers", *shape)
    first = torch.arange(shape[0], device=rows.device)[:, None] * each
    own = (rows >= 0) & (rows < each)
    return (rows + first).where(own, -2).where(rows != -1, -1).int().flatten()
