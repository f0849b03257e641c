"""Batches of any number of sequences, made of the same few."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.generators import Batch
from tests.proof.emulated.workloads import batch, greedy_target, nearly_equal, without_distributions


def repeated(batch: Batch, times: int) -> Batch:
    """The same sequences again and again: what each decides may not change."""
    drafts = batch.draft_token_ids.numel()
    assert int(batch.draft_offsets[-1]) == drafts
    assert batch.draft_rows is None

    def again(name: str) -> Tensor | None:
        tensor: Tensor | None = getattr(batch, name)
        return None if tensor is None else tensor.repeat(times, *[1] * (tensor.dim() - 1))

    starts = torch.arange(times).repeat_interleave(batch.size) * drafts
    ends = torch.tensor([times * drafts])
    names = (
        "target_logits",
        "draft_logits",
        "draft_stats",
        "draft_token_ids",
        "step_keys",
        "positions",
    )
    more = ("target_temperature", "draft_temperature", "dynamic_tokens", "dynamic_logits")
    return batch.replace(
        **{name: again(name) for name in (*names, *more)},
        draft_offsets=torch.cat([batch.draft_offsets[:-1].repeat(times) + starts, ends]).int(),
    )


def bad_values() -> Batch:
    """A draft row and a target row without distribution, ids outside, a draft cut short."""
    return without_distributions().replace(
        draft_offsets=batch("virtual").draft_offsets, draft_rows=None
    )


BATCHES: dict[str, Callable[[], Batch]] = {
    "mixed": batch,
    "16 bits": lambda: batch("virtual", torch.bfloat16),
    "greedy": greedy_target,
    "direct pass": nearly_equal,
    "bad values": bad_values,
    "by block": lambda: batch().replace(method=1),
    "by block, bad values": lambda: bad_values().replace(method=1),
}
