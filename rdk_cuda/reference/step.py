"""The rows of a step: `draft` that keeps its row at a place of a slot, and `verify` of all places.

DESIGN section 4, "Rows of a step".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .operators import draft, verify
from .operators import step_keys as keys_of
from .random import Trace


def draft_step(
    draft_logits: Tensor,
    step_tokens: Tensor,
    step_stats: Tensor,
    step_keys: Tensor,
    step_logits: Tensor,
    step_dynamic_tokens: Tensor | None,
    step_dynamic_logits: Tensor | None,
    place: int,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *affinity_and_columns: Any,
    slots: Tensor | None = None,
    place_id: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
    **columns: Any,
) -> Tensor:
    """Draw tokens ``[B, 1]``, and change the ``step_*``, as the operator does.

    Args:
        affinity_and_columns, columns: as in `draft`, from its `bias` to its `min_p`.
    """
    place = place if place_id is None else int(place_id)
    keys = keys_of(seeds, positions)
    tokens, stats = draft(
        draft_logits,
        temperature,
        keys,
        positions + place,
        *affinity_and_columns,
        **columns,
        dtype=dtype,
        trace=trace,
    )
    size, places = step_tokens.shape
    rows = list(range(len(tokens))) if slots is None else slots.tolist()
    memories = step_tokens, step_stats, step_logits, step_dynamic_tokens, step_dynamic_logits
    made = tokens, stats, draft_logits, *map(columns.get, ("dynamic_tokens", "dynamic_logits"))
    for b, slot in enumerate(rows):
        if 0 <= slot < size and 0 <= place < places:
            step_keys[slot] = keys[b]
            for memory, own in zip(memories, made, strict=True):
                if memory is not None and own is not None:
                    memory[slot, place] = own[b]
    return tokens[:, None]


def verify_step(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_stats: Tensor,
    draft_token_ids: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    allowed: Tensor | None = None,
    **of_sequences_and_affinity: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Verify the first J places of each sequence, as `verify` does.

    Args:
        of_sequences_and_affinity: the other arguments of `verify`.
    """
    batch, drafts = target_logits.shape[0], target_logits.shape[1] - 1
    draft_rows, stats, *dynamic = (
        None if rows is None else rows[:, :drafts].flatten(0, 1)
        for rows in (draft_logits, draft_stats, dynamic_tokens, dynamic_logits)
    )
    assert draft_rows is not None
    return verify(
        target_logits.flatten(0, 1),
        draft_rows,
        stats,
        None,
        draft_token_ids.flatten(),
        torch.arange(batch + 1, dtype=torch.int32, device="cpu") * drafts,
        **of_sequences_and_affinity,
        max_draft=drafts,
        dynamic_tokens=dynamic[0],
        dynamic_logits=dynamic[1],
        allowed=None if allowed is None else allowed.flatten(0, 1),
    )
