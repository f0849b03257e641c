"""`verify` where each rank has a shard of the target's logits: tensor parallelism over V_t.

No rank sees the logits of another one. The tokens are those of `rdk_cuda.verify` on whole logits,
to the bit, for any number of ranks (DESIGN section 4, "Verify on shards").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, distributed

from . import _ops as operators
from . import functional
from ._ops.contract import OPERATORS
from ._ops.inputs import Integers, Numbers, takes_arrays
from .affinity import Affinity
from .functional.operators import step_arguments
from .functional.step import Draft, Method, Verified

_NAME = "rdk_cuda.shards.verify"
_CHUNK = 1024  # kChunk in csrc/params.h
_NOT_HERE = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class _Shards:
    rank: int
    ranks: int
    width: int  # columns of each rank
    size: int  # V_t

    def first(self, rank: int) -> int:
        return min(-(-rank * self.width // _CHUNK), -(-self.size // _CHUNK))

    def count(self, rank: int) -> int:
        return self.first(rank + 1) - self.first(rank)

    @property
    def most(self) -> int:
        return max(map(self.count, range(self.ranks)))

    def head(self, rank: int) -> int:
        """How many of a rank's first columns belong to a chunk that begins before them."""
        begin = rank * self.width
        end = min(begin + self.width, self.first(rank) * _CHUNK, self.size)
        return max(0, end - begin)

    def owner(self, rank: int) -> int:
        return rank * self.width // _CHUNK * _CHUNK // self.width


def _recut(logits: Tensor, shards: _Shards, group: Any) -> tuple[Tensor, int]:
    """The rank's whole chunks, the last one completed by other ranks' heads, and the first's
    number."""
    rank, first = shards.rank, shards.first(shards.rank)
    if shards.width % _CHUNK == 0 or shards.ranks == 1:
        return logits, first
    heads = [shards.head(r) for r in range(shards.ranks)]
    column = len(logits) * logits.element_size()  # bytes
    given = [column * heads[r] * (shards.owner(r) == rank) for r in range(shards.ranks)]
    to = [column * heads[rank] * (shards.owner(rank) == r) for r in range(shards.ranks)]
    sent = logits[:, : heads[rank]].contiguous().flatten().view(torch.uint8)
    received = sent.new_empty(sum(given))
    distributed.all_to_all_single(received, sent, given, to, group=group)
    if shards.count(rank) == 0:
        return logits, -(-shards.size // _CHUNK)  # of which nothing is read
    own = logits[:, heads[rank] : max(0, shards.size - rank * shards.width)]
    parts = [part.view(logits.dtype) for part in received.split(given) if part.numel()]
    return torch.cat([own, *(part.unflatten(0, (len(own), -1)) for part in parts)], 1), first


def _gathered(pairs: Tensor, more: int, shards: _Shards, group: Any) -> Tensor:
    """Pairs of all chunks, ``[..., chunks, 2]``, from those of each rank, and behind them the
    largest of all ranks' last `more` pairs, which belong to no chunk."""
    count, most = shards.count(shards.rank), shards.most
    local = pairs.new_zeros((*pairs.shape[:-2], most + more, 2))
    local[..., :count, :] = pairs[..., :count, :]
    local[..., most:, :] = pairs[..., pairs.shape[-2] - more :, :]
    every = local.new_empty((shards.ranks, *local.shape))
    distributed.all_gather(list(every), local, group=group)
    chunks = [every[r][..., : shards.count(r), :] for r in range(shards.ranks)]
    return torch.cat([*chunks, every[..., most:, :].amax(0)], -2)


@takes_arrays
def verify(
    target_logits: Tensor,
    draft: Draft | Sequence[Draft],
    affinity: Affinity,
    temperature: Numbers = 1.0,
    *,
    top_k: Integers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
    allowed: Tensor | None = None,
    logprobs: Literal["processed", "raw"] | None = None,
    method: Method = "token",
    draft_rows: Tensor | None = None,
    group: Any = None,
) -> Verified:
    """Verify as `rdk_cuda.verify`, with logits that the ranks of a group have in shards.

    Every rank calls it with the same arguments but for `target_logits`, and gets the same result,
    that of whole logits. By token, what goes from rank to rank, for V_t columns on P ranks, is:

    1. 8 bytes for each 1,024 columns of each row, and 8 more: an all-gather.
    2. 8 bytes a sequence: an all-reduce.
    3. 8 bytes for each 1,024 columns of each sequence: an all-gather. On CPUs only where 32 tries
       have failed in some sequence; on a GPU always, since to ask would wait for it.

    Where the width of a shard is no multiple of 1,024, ranks first hand on less than 1,024 columns
    a row, so that none has parts of a chunk. Nothing waits for a GPU, and with NCCL a call can be
    captured into a graph.

    Args:
        target_logits: `[B, K + 1, W]` float32, float16 or bfloat16: on rank r, columns `r W` up to
            `(r + 1) W` of the target's logits, W the same on every rank. Columns from V_t on, the
            size that `affinity` has, are padding, and never read.
        draft, affinity, temperature, draft_rows: as in `rdk_cuda.verify`, whole on every rank; the
            draft with its `stats`.
        group: a `torch.distributed` process group; the default group if not given.
        top_k, top_p, min_p, allowed, logprobs, method: as in `rdk_cuda.verify`. If one is given,
            other than "token", the ranks gather all logits first.

    Returns:
        `Verified(tokens [B, K + 1], num_accepted [B], logprobs)`, equal on every rank.

    Raises:
        ValueError: for shards that do not cover V_t.
        RuntimeError: from `torch.distributed`, if another rank has died, on all ranks within the
            group's timeout.

    Example:
        >>> import torch, rdk_cuda
        >>> from rdk_cuda import shards
        >>> from torch import distributed
        >>> store = distributed.HashStore()
        >>> distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(5))
        >>> copied = rdk_cuda.Draft.without_distribution(
        ...     torch.tensor([[3, 1]]), seeds=7, positions=12)
        >>> tokens, accepted, _ = shards.verify(torch.zeros(1, 3, 5), copied, affinity)
        >>> distributed.destroy_process_group()
    """
    if not distributed.is_initialized():
        raise ValueError(
            f"{_NAME}: torch.distributed has no process group; call init_process_group first"
        )
    options: dict[str, Any] = {"top_k": top_k, "top_p": top_p, "min_p": min_p}
    options |= {"allowed": allowed, "logprobs": logprobs}
    if method != "token" or any(option is not None for option in options.values()):
        options |= {"method": method, "draft_rows": draft_rows}
        whole = whole_rows(target_logits, affinity.target_size, group)
        return functional.verify(whole, draft, affinity, temperature, **options)
    step = step_arguments(_NAME, target_logits, draft, affinity, temperature, draft_rows)
    if step["draft_stats"] is None:
        if len(step["draft_logits"]):
            raise ValueError(f"{_NAME}: draft has no stats; pass it as rdk_cuda.draft returned it")
        shape = 0, 2 + affinity.rank
        step["draft_stats"] = step["draft_logits"].new_empty(shape, dtype=torch.float32)
    return verify_packed(step, affinity.target_size, group)


def verify_packed(step: dict[str, Any], target_size: int, group: Any = None) -> Verified:
    """Verify by token what `torch.ops.rdk.verify` takes (DESIGN section 4, "Schemas").

    Args:
        step: by name, with `draft_stats`; `target_logits` are `[>= N + B, W]`.
        target_size: V_t.
        group: as in `verify`.
    """
    shards = _shards(step["target_logits"], target_size, group)
    logits, first = _recut(step["target_logits"], shards, group)
    step = step | {"target_logits": logits, "first_chunk": first}
    given = step | {"target_size": target_size}
    own = operators.sum_shard(**{name: given[name] for name in OPERATORS["sum_shard"].arguments})
    # z at a draft is -inf but where the draft is
    call = partial(operators.verify_shard, **step, sums=_gathered(own, 1, shards, group))
    _, _, drawn, _ = call()
    distributed.all_reduce(drawn, distributed.ReduceOp.MIN, group=group)
    tokens, num_accepted, _, residual = call(drawn=drawn)
    if drawn.is_cuda or bool((drawn == _NOT_HERE).any()):
        residuals = _gathered(residual, 0, shards, group)
        tokens, num_accepted, _, _ = call(drawn=drawn, residuals=residuals)
    return Verified(tokens, num_accepted, tokens.new_empty(0, dtype=torch.float32))


def whole_rows(target_logits: Tensor, target_size: int, group: Any = None) -> Tensor:
    """Gather `[..., V_t]` from the ranks' shards `[..., W]`: one all-gather."""
    ranks = _shards(target_logits, target_size, group).ranks
    own = target_logits.contiguous().view(torch.uint8)  # gloo has not all dtypes
    every = [torch.empty_like(own) for _ in range(ranks)]
    distributed.all_gather(every, own, group=group)
    return torch.cat(every, -1).view(target_logits.dtype)[..., :target_size]


def _shards(target_logits: Tensor, target_size: int, group: Any) -> _Shards:
    """Raise ValueError if they do not cover V_t."""
    rank, ranks = distributed.get_rank(group), distributed.get_world_size(group)
    shards = _Shards(rank, ranks, target_logits.shape[-1], target_size)
    if ranks * shards.width < target_size:
        raise ValueError(
            f"{_NAME}: target_logits has {shards.width} columns on each of {ranks} ranks; "
            f"needs at least {-(-target_size // ranks)}, to cover V_t = {target_size}"
        )
    return shards
