"""Model runner V2's rejection sampler on `rdk::verify`: vLLM's layouts in, vLLM's layouts out.

Functions on tensors, which do not import vLLM. `drafting_v2` and `verification_v2` call them inside
vLLM's own classes.

The rows of logits lie as `rdk::verify` reads them: for each request its drafted positions, then the
one after them. A request without drafts, such as a chunked prefill, has one row. It gets one token,
which vLLM itself drops if the prefill goes on.

Two rules keep the output lossless (DESIGN section 5). Never shorten a draft because of its tokens:
where a grammar forbids one, leave it in and set the target's logit to `-inf`, so that it is
rejected. And -1 means "nothing was drafted here" to `rdk::verify`, whatever the drafter meant.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ...functional import Method
from ..draft_arena import DraftArena
from .metrics import Counters

PLACEHOLDER_TOKEN_ID = -1


def sample_draft(
    logits: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    draft_step: Tensor,
    arena: DraftArena,
    *,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> Tensor:
    """Do `DraftModelSpeculator.sample_draft` of model runner V2, after the draft model's head.

    Args:
        logits: `[num_reqs, V_d]`, over the drafter's own vocabulary, unprocessed, in the arena's
            dtype.
        positions: `[num_reqs]`, one less than the positions of the tokens that are drawn.
        idx_mapping: `[num_reqs]`, the slot of each request; negative for padding.
        temperature: `[max_num_reqs]` float32, by slot. seeds: `[max_num_reqs]` int64, by slot.
        draft_step: one integer, of shape `[]` or `[1]`, 0 for the first draft of a step.
        arena: keeps `logits` for `rejection_sample`.
        dynamic_tokens, dynamic_logits: `[num_reqs, C]`, as in `DraftArena.draft`.

    Returns:
        `[num_reqs]` int64 target ids, -1 where a row of logits is no distribution.
    """
    # Padding and bad data read some slot's, and it is not used.
    slots = idx_mapping.clamp(0, max(temperature.shape[0] - 1, 0))
    return arena.draft(
        logits,
        draft_step,
        slots=idx_mapping,
        temperature=temperature[slots],
        seeds=seeds[slots],
        positions=positions.long() + 1 - draft_step,
        dynamic_tokens=dynamic_tokens,
        dynamic_logits=dynamic_logits,
    )


class Settings(NamedTuple):
    """Settings that a request has in all of its steps: `[num_reqs]` each.

    Attributes:
        temperature: float32. seeds: int64.
        rest: float32, what is still to be divided by: 1, or 0 for a greedy request.
    """

    temperature: Tensor
    seeds: Tensor
    rest: Tensor

    @classmethod
    def of(cls, slots: Tensor, temperature: Tensor, seeds: Tensor) -> Settings:
        """Look them up, of requests in these slots."""
        own = temperature[slots]
        return cls(own, seeds[slots], own.sign())


def rejection_sample(
    target_logits: Tensor,
    draft_sampled: Tensor,
    cu_num_logits: Any,
    pos: Tensor,
    idx_mapping: Tensor,
    idx_mapping_np: Any,
    temperature: Tensor,
    seed: Tensor,
    num_speculative_steps: int,
    arena: DraftArena,
    *,
    method: Method = "token",
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    settings: Settings | None = None,
    counters: Counters | None = None,
) -> tuple[Tensor, Tensor]:
    """Do `rejection_sample` of the model runner V2, whose argument names these are.

    Args:
        target_logits: `[num_logits, V_t]`, processed: already divided by the temperature, with
            `-inf` where a parameter of the request or a grammar forbids a token.
        draft_sampled: `[num_logits]`, the input token of each row: the request's newest token, then
            its drafts. Those are target ids.
        cu_num_logits: `[num_reqs + 1]`, on the host; every request owns at least one row. Rows
            after the last entry are padding.
        pos: `[num_logits]`, the positions of the input tokens.
        idx_mapping: `[num_reqs]`, the slot of each request. idx_mapping_np: its copy on the host;
            -1 there: the request's drafts are of an n-gram or suffix drafter.
        temperature: `[max_num_reqs]` float32, by slot. 0 is greedy; the logits have been divided by
            the others.
        seed: `[max_num_reqs]` int64, by slot, as given to `DraftArena.draft`.
        num_speculative_steps: the most drafts of a request.
        arena: what was drafted from, in the slots of `idx_mapping`, in place of `draft_logits`.
        method: of `rdk_cuda.verify`.
        top_k, top_p: `[num_reqs]`, what the rows are still to be truncated by; None: nothing.
        settings: of the requests, where they are at hand, of `temperature` and `seed`.
        counters: to which what was verified is added.

    Returns:
        `sampled` `[num_reqs, num_speculative_steps + 1]` int64, with -1 after the last token and,
        where a row of `target_logits` is no distribution, in its place; and `num_sampled`
        `[num_reqs]` int32, 1 to `num_speculative_steps + 1`.

    Example:
        >>> import torch
        >>> from rdk_cuda import Affinity, Vocabulary
        >>> affinity = Affinity.intersection(Vocabulary.identity(5))
        >>> arena = DraftArena(affinity, slots=0, draft_length=2)
        >>> sampled, num_sampled = rejection_sample(
        ...     torch.eye(5)[[1, 2, 3, 4]], torch.tensor([0, 1, 2, 9]),
        ...     [0, 3, 4], torch.tensor([7, 8, 9, 4]), torch.tensor([1, 0]), [-1, -1],
        ...     torch.zeros(2), torch.tensor([3, 4]), 2, arena)
        >>> sampled
        tensor([[ 1,  2,  3],
                [ 4, -1, -1]])
    """
    if settings is None:
        settings = Settings.of(idx_mapping, temperature, seed)
    ends = np.asarray(cu_num_logits, dtype=np.int64)
    counts = ends[1:] - ends[:-1] - 1  # of each request's rows, the first is no draft
    inputs = np.arange(counts.sum()) + np.arange(1, len(ends)).repeat(counts)
    layout = arena.layout(counts, idx_mapping_np, inputs, ends[:-1])
    drafts = draft_sampled[layout.more[0]]
    tokens, num_accepted, _ = arena.verify(
        target_logits,
        drafts,
        layout.offsets,
        layout.rows,
        temperature=settings.rest,
        draft_temperature=settings.temperature,
        seeds=settings.seeds,
        positions=pos[layout.more[1]].long() + 1,
        max_draft=num_speculative_steps,
        method=method,
        top_k=top_k,
        top_p=top_p,
    )
    if counters is not None:
        counters.count(arena, drafts, layout, num_accepted, method)
    return tokens, num_accepted + 1
