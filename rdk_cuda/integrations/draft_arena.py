"""The logits that a serving engine drafted from, kept until it verifies the drafts.

An engine drafts at the end of one step and verifies in the next, where the batch has another order.
So what was drafted from lies in *slots*, one for each running request (vLLM's `idx_mapping`,
SGLang's `req_pool_indices`). The adapters `vllm` and `sglang` convert the engines' layouts.

Nothing here waits for the device. The shapes of a draft depend on shapes only, so a CUDA graph can
hold it. How a verification is laid out is known on the host, and made there for each step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import _ops as operators
from .. import shards
from .._ops.inputs import upload, whole_number
from ..affinity import Affinity
from ..functional import METHODS, Method, StepRows, Verified
from ..functional.step import affinity_columns, packed


class Layout(NamedTuple):
    """Where the drafts of a step lie, on the device of an arena (`DraftArena.layout`).

    Attributes:
        offsets: `[B + 1]` int32, where each request's drafts begin in a packed list.
        rows: `[N]` int32, what they were drawn from, as `rdk::verify` takes it.
        request, place: `[N]` int32, whose draft each is, and how many come before it.
        more: what was uploaded with them, int32.
        unknown: how many of the rows the arena lacks, which the host knows.
    """

    offsets: Tensor
    rows: Tensor
    request: Tensor
    place: Tensor
    more: tuple[Tensor, ...]
    unknown: int


class DraftArena:
    """The drafter's logits for the next step of every request, with room for K drafts each.

    It holds `slots * K * V_d` logits: 129 MB for 512 requests, K = 4 and a bfloat16 drafter of
    31,500 tokens.

    Args:
        affinity: from drafter to target; its device is the arena's.
        slots: how many requests can run, S. 0 where no draft has a distribution (n-grams).
        draft_length: K, the most drafts of a step.
        dtype: of the drafter's logits. They are kept unrounded: rounded ones would be another
            distribution than the one that was drafted from.
        dynamic_width: C, how many dynamic tokens a draft brings along (DESIGN section 2).

    Attributes:
        rows: the memory, `rdk_cuda.StepRows` of S slots and K places.
        named: `[C, S K]`, the dynamic tokens in it, or None.

    Example:
        >>> import torch, rdk_cuda
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
        >>> arena = DraftArena(affinity, slots=8, draft_length=2)
        >>> batch = {"slots": torch.tensor([6]), "temperature": torch.ones(1)}
        >>> key = {"seeds": torch.tensor([1]), "positions": torch.tensor([17])}
        >>> tokens = [arena.draft(torch.zeros(1, 3), k, **batch, **key) for k in range(2)]
        >>> where = arena.layout([2], [6])
        >>> decided, accepted, _ = arena.verify(
        ...     torch.zeros(3, 5), torch.cat(tokens), where.offsets, where.rows,
        ...     temperature=batch["temperature"], **key)
    """

    def __init__(
        self,
        affinity: Affinity,
        slots: int,
        draft_length: int,
        *,
        dtype: torch.dtype = torch.float32,
        dynamic_width: int = 0,
    ) -> None:
        self.affinity, self.slots, self.draft_length = affinity, slots, draft_length
        self.device = affinity.device
        rows = StepRows(affinity, slots, draft_length, dtype=dtype, dynamic_width=dynamic_width)
        self.rows = rows
        self._kept = {
            "draft_logits": packed(rows.logits),
            "draft_stats": packed(rows.stats),
            "dynamic_tokens": packed(rows.dynamic_tokens),
            "dynamic_logits": packed(rows.dynamic_logits),
            **affinity_columns(affinity),
        }
        named = self._kept["dynamic_tokens"]
        self.named = None if named is None else named.t()

    def draft(
        self,
        logits: Tensor,
        step: int | Tensor,
        *,
        slots: Tensor | None,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        dynamic_tokens: Tensor | None = None,
        dynamic_logits: Tensor | None = None,
    ) -> Tensor:
        """Draw the next token of B requests, and keep what it was drawn from.

        One call of `rdk::draft_step` (DESIGN section 4, "Rows of a step") in the place of the
        engine's own draw from the drafter.

        Args:
            logits: `[B, V_d]` in the arena's dtype, neither scaled nor masked.
            step: 0 to K - 1, which draft of the step this is; a number, or a tensor of one integer
                where one CUDA graph serves all drafts.
            slots: `[B]` integers; outside of `[0, S)` for a request that is padding. None: request
                b has slot b.
            temperature: `[B]` float32, the drafter's; 0 is greedy.
            seeds: `[B]` int64, each request's own, the same during all of its decoding.
            positions: `[B]` int64, the absolute position of the step's first drafted token: the
                same for every `step` and for `verify`.
            dynamic_tokens, dynamic_logits: `[B, C]` int32, and logits in the arena's dtype.

        Returns:
            `[B]` int64 target ids, -1 where a row of logits is no distribution. A model cannot
            read -1, so replace it before the next pass.

        Raises:
            ValueError, RuntimeError: naming the argument that does not fit.
        """
        if logits.dtype != self.rows.logits.dtype:
            raise ValueError(
                f"DraftArena.draft: logits are {logits.dtype}; the arena keeps "
                f"{self.rows.logits.dtype}: make it with dtype={logits.dtype}"
            )
        place, place_id = 0, None
        if isinstance(step, Tensor):
            place_id = step.reshape(1) if step.dim() == 0 else step
        else:
            place = whole_number("DraftArena.draft", "step", step)
        tokens: Tensor = operators.draft_step(
            logits,
            *self.rows.memory,
            place,
            temperature,
            seeds,
            positions,
            *self.affinity.by_draft,
            dynamic_tokens,
            dynamic_logits,
            slots=slots,
            place_id=place_id,
        )
        return tokens.squeeze(1)

    def verify(
        self,
        target_logits: Tensor,
        draft_token_ids: Tensor,
        draft_offsets: Tensor,
        draft_rows: Tensor | None,
        *,
        temperature: Tensor,
        seeds: Tensor,
        positions: Tensor,
        draft_temperature: Tensor | None = None,
        max_draft: int | None = None,
        method: Method = "token",
        top_k: Tensor | None = None,
        top_p: Tensor | None = None,
        min_p: Tensor | None = None,
        group: Any = None,
    ) -> Verified:
        """Verify a packed batch whose drafts lie in slots (DESIGN section 4).

        Args:
            target_logits: `[>= N + B, V_t]`, the rows of request b from `draft_offsets[b] + b`.
            draft_token_ids: `[N]`, packed; -1 where none was drafted.
            draft_offsets: `[B + 1]` int32.
            draft_rows: `[N]` int32, as in `Layout`; -1: the draft is fixed, q is one-hot on it.
                None: all drafts are.
            temperature: `[B]` float32, the target's; 0 is greedy.
            seeds, positions: `[B]`, as in `draft`.
            draft_temperature: `[B]`, what was drafted with; None: the target's.
            max_draft: the width of the output less one; None: K.
            method: of `rdk_cuda.verify`.
            top_k, top_p, min_p: `[B]`, what the target's rows are cut off by; None: nothing.
            group: of `torch.distributed`, whose ranks have a shard of `target_logits` each, as in
                `rdk_cuda.shards.verify`. None: it has whole rows.

        Returns:
            `Verified(tokens [B, max_draft + 1], num_accepted [B], logprobs [0])`.
        """
        size, count = self.affinity.target_size, draft_token_ids.shape[0]
        if draft_rows is None:
            draft_rows = torch.full((count,), -1, dtype=torch.int32, device=self.device)
        step: dict[str, Any] = {
            **self._kept,
            "target_logits": target_logits,
            "draft_rows": draft_rows,
            "draft_token_ids": draft_token_ids,
            "draft_offsets": draft_offsets,
            "target_temperature": temperature,
            "draft_temperature": temperature if draft_temperature is None else draft_temperature,
            "step_keys": operators.step_keys(seeds, positions),
            "positions": positions,
            "max_draft": self.draft_length if max_draft is None else max_draft,
        }
        limits = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        if group is not None:
            if method == "token" and all(limit is None for limit in limits.values()):
                return shards.verify_packed(step, size, group)
            step["target_logits"] = shards.whole_rows(target_logits, size, group)
        return Verified(*operators.verify(**step, **limits, method=METHODS[method]))

    def layout(self, counts: Any, slots: Any, *more: Any) -> Layout:
        """Lay out a step on the host, and upload it at once, without waiting.

        Args:
            counts: `[B]`, the drafts of each request. slots: `[B]`, as in `draft`; -1: its drafts
                are fixed.
            more: integers that the step needs on the device, too.
        """
        counts, slots = np.asarray(counts, dtype=np.int64), np.asarray(slots)
        ends = counts.cumsum()
        request = np.arange(len(counts)).repeat(counts)
        place = np.arange(len(request)) - (ends - counts)[request]
        rows = self.row_of(slots[request], place)
        parts = [np.append(0, ends), rows, request, place, *more]
        uploaded = upload(np.concatenate(parts).astype(np.int32), self.device)
        offsets, own, of, at, *others = uploaded.split([len(part) for part in parts])
        unknown = int(((rows < 0) | (rows >= self.slots * self.draft_length)).sum())
        return Layout(offsets, own, of, at, tuple(others), unknown)

    def row_of(self, slot: Any, place: Any) -> Any:
        """Return the row of each draft, of arrays or tensors.

        Draft j of a request in slot s lies in row `s K + j`. A request of slot -1 has no
        distributions, row -1; a slot that the arena lacks gives a row that it lacks, and so a
        rejection by rule.
        """
        row, none, length = slot * self.draft_length + place, slot == -1, self.draft_length
        there = (slot >= 0) & (slot < self.slots) & (place < length)
        return there * row + ~(there | none) * (self.slots * length) - none * 1
