"""A step that is drafted into `StepRows`, and verified where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.inputs import Numbers, row_limits, seeds_and_positions, temperatures
from ..affinity import Affinity
from .rows import StepRows
from .step import Draft, Verified


def draft_into_rows(
    logits: Tensor,
    affinity: Affinity,
    after: Draft | None,
    rows: StepRows | None,
    dynamic: tuple[Tensor | None, Tensor | None],
    given: tuple[Any, ...],
) -> Draft:
    """Draft the next place of a step that is kept in rows, in one call of an operator."""
    batch, width = logits.shape[0], 0 if dynamic[0] is None else dynamic[0].shape[-1]
    if width == 0:
        dynamic = None, None
    if after is None:
        name, device, place = "rdk_cuda.draft", logits.device, 0
        if not isinstance(rows, StepRows):
            raise TypeError(f"{name}: rows is a {type(rows).__name__}; needs StepRows")
        scale, seeds, positions, generator, *limits = given
        scale = temperatures(name, 1.0 if scale is None else scale, (batch,), device)
        own, first = seeds_and_positions(name, seeds, positions, generator, batch, device)
        truncation = _row_limits(name, limits, batch, device)
        rows.drafted = 0
    else:
        check_continues(after, batch, (*given, rows))
        rows = cast(StepRows, after.rows)
        place = after.offset + after.tokens.shape[1]
        own, scale = cast(Tensor, rows.seeds), after.temperature
        first, truncation = after.positions, after.limits
    rows.check(logits, width, any(limit is not None for limit in truncation), place)
    operators.draft_step(
        logits,
        *rows.memory,
        place,
        scale,
        own,
        first,
        *affinity.by_draft,
        *dynamic,
        *truncation,
    )
    if place == 0:
        rows.step, rows.seeds = object(), own
    rows.drafted = place + 1
    step: dict[str, Any] = {"temperature": scale, "positions": first, "limits": truncation}
    return Draft.of_rows(rows, place, rows.place_tokens[place], **step)


def _row_limits(
    function: str, limits: Sequence[Any], batch: int, device: torch.device
) -> tuple[Tensor | None, ...]:
    """Top-k, top-p and min-p, `[B]` each."""
    top_k, top_p, min_p = limits
    return row_limits(function, top_k, top_p, min_p, (batch,), device)


def check_continues(after: Draft, batch: int, given: Sequence[object]) -> None:
    """Refuse what belongs to the first draft of a step, and another batch."""
    if any(value is not None for value in given):
        raise ValueError(
            "rdk_cuda.draft: temperature, seeds, limits, generator, positions and rows belong "
            "to the first draft of a step; leave them out together with after="
        )
    after.refuse_if_filled_again()
    if after.tokens.shape[0] != batch:
        raise ValueError(
            f"rdk_cuda.draft: draft_logits has {batch} sequences, but after= has "
            f"{after.tokens.shape[0]}; both need the same batch"
        )


def verify_rows(
    target_logits: Tensor,
    draft: Draft | Sequence[Draft],
    affinity: Affinity,
    temperature: Numbers,
    limits: Sequence[Any],
    asked: tuple[int, int],
    allowed: Tensor | None,
) -> Verified | None:
    """Verify drafts that lie in rows; None where something else is given, for the other way."""
    drafts = (draft,) if isinstance(draft, Draft) else draft
    last = drafts[-1] if isinstance(drafts, list | tuple) and drafts else None
    if not isinstance(last, Draft) or last.rows is None or torch.compiler.is_compiling():
        return None
    last.refuse_if_filled_again()
    rows, length = last.rows, last.offset + last.tokens.shape[1]
    if target_logits.shape[:-1] != (rows.slots, length + 1):
        return None
    if len(drafts) == length and rows.hold(drafts):
        tokens = rows.tokens if length == rows.places else rows.tokens[:, :length]
    elif len(drafts) == 1 and last.offset == 0:
        tokens = last.tokens
    else:
        return None
    name, device = "rdk_cuda.verify", target_logits.device
    return Verified(
        *operators.verify_step(
            target_logits.contiguous(),
            rows.logits,
            rows.stats,
            tokens,
            temperatures(name, temperature, (rows.slots,), device),
            last.temperature,
            rows.step_keys,
            last.positions,
            *affinity.by_target,
            rows.dynamic_tokens,
            rows.dynamic_logits,
            *_row_limits(name, limits, rows.slots, device),
            None if allowed is None else allowed.contiguous(),
            *asked,
        )
    )
