"""The logits that a serving engine drafted from, kept until it verifies the drafts.

An engine drafts at the end of one step and verifies in the next, where the batch has another order.
So what was drafted from lies in *slots*, one for each running request (vLLM's `idx_mapping`,
SGLang's `req_pool_indices`). The adapters `vllm` and `sglang` convert the engines' layouts.

Nothing here waits for the device, and shapes depend on shapes only, so all of it can be captured in
a CUDA graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _ops as operators
from .. import shards
from .._ops.inputs import check_tensor, whole_number
from ..affinity import Affinity
from ..functional import METHODS, Draft, Method, StepRows, Verified
from ..functional.step import packed_step


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

    Example:
        >>> import torch, rdk_cuda
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
        >>> arena = DraftArena(affinity, slots=8, draft_length=2)
        >>> batch = {"slots": torch.tensor([6]), "temperature": torch.ones(1)}
        >>> key = {"seeds": torch.tensor([1]), "positions": torch.tensor([17])}
        >>> tokens = [arena.draft(torch.zeros(1, 3), k, **batch, **key) for k in range(2)]
        >>> offsets = torch.tensor([0, 2], dtype=torch.int32)
        >>> decided, accepted, _ = arena.verify(
        ...     torch.zeros(3, 5), torch.cat(tokens), offsets, **batch, **key)
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
        self.rows = StepRows(
            affinity, slots, draft_length, dtype=dtype, dynamic_width=dynamic_width
        )

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
            place_id = step.reshape(1)
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
        *,
        slots: Tensor | None,
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
            slots: `[B]` integers, as in `draft`; -1: the request's drafts are fixed, q
                is one-hot on each. None: of all requests.
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
        rows, size = self.rows, self.affinity.target_size
        scale = temperature if draft_temperature is None else draft_temperature
        key = operators.step_keys(seeds, positions)
        drawn = rows.logits, rows.stats, scale, key, positions
        step = packed_step(
            Draft(draft_token_ids, *drawn, 0, rows.dynamic_tokens, rows.dynamic_logits),
            self.affinity,
            target_logits,
            temperature,
            draft_offsets,
            self.draft_rows(draft_offsets, slots, draft_token_ids.shape[0]),
            self.draft_length if max_draft is None else max_draft,
        )
        limits = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
        if group is not None:
            if method == "token" and all(limit is None for limit in limits.values()):
                return shards.verify_packed(step, size, group)
            step["target_logits"] = shards.whole_rows(target_logits, size, group)
        return Verified(*operators.verify(**step, **limits, method=METHODS[method]))

    def draft_rows(self, draft_offsets: Tensor, slots: Tensor | None, count: int) -> Tensor:
        """Make the argument `draft_rows` of `rdk::verify`, `[count]` int32.

        Draft j of a request in slot s lies in row `s K + j`. A request of slot -1 has no
        distributions, row -1; a slot that the arena lacks gives a row that it lacks, and so a
        rejection by rule.
        """
        if slots is None or slots.shape[0] == 0:
            return torch.full((count,), -1, dtype=torch.int32, device=self.device)
        drafts = torch.arange(count, dtype=torch.int32, device=self.device)
        request = torch.searchsorted(draft_offsets[1:].contiguous(), drafts, right=True)
        request = request.clamp_(max=slots.shape[0] - 1)  # padding after the last request
        slot, step = slots[request], drafts - draft_offsets[request]
        there = (slot >= 0) & (slot < self.slots) & (step >= 0) & (step < self.draft_length)
        elsewhere = torch.where(slot == -1, -1, self.slots * self.draft_length)
        return torch.where(there, slot * self.draft_length + step, elsewhere).int()


def check_layout(
    function: str,
    device: torch.device,
    integers: dict[str, tuple[Tensor, tuple[int, ...]]],
    floats: dict[str, tuple[Tensor, tuple[int, ...]]],
) -> None:
    """Refuse, by name, a tensor of another kind or shape, or on another device, than needed."""
    for name, (tensor, shape) in (integers | floats).items():
        kind = "floats" if name in floats else "integers"
        check_tensor(f"{function}: {name}", tensor, kind, *shape)
        if tensor.device != device:
            raise ValueError(
                f"{function}: {name} is on {tensor.device}, the affinity on {device}; use .to()"
            )
