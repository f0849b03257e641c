"""The operators with an `Affinity` in place of its tensors and a batch in place of a packed list.

Each function checks what it adds to the operator: scalars, batches, seeds. The operator itself
checks the rest. A misfit is a TypeError, ValueError or RuntimeError that names the
argument. Tensors may also be arrays of other libraries with `__dlpack__`, such as CuPy's, which are
read where they are. Results are tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.contract import LIMITS
from .._ops.gradients import refuse_gradients
from .._ops.inputs import (
    Integers,
    Numbers,
    check_shape,
    limits,
    row_limits,
    step_keys_and_positions,
    takes_arrays,
    temperatures,
    whole_number,
)
from ..affinity import Affinity
from ..ranges import Range
from .kept import check_continues, draft_at_once, draft_into_rows, unless, verify_rows
from .rows import StepRows
from .step import LOGPROBS, Draft, Method, Verified, method_number, packed_rows, packed_step

__all__ = ["draft", "gather_logits", "redistribute", "step_keys", "verify"]


@takes_arrays
def redistribute(
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: Numbers = 1.0,
    *,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Integers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
) -> Tensor:
    """Redistribute over the whole target vocabulary: `q = A^T softmax(l / T + bias)`.

    DESIGN section 2, equation "Redistribution"; arXiv:2506.03206. Neither `draft` nor `verify`
    needs it: it is for decoders that want q itself.

    Args:
        draft_logits: `[..., V_d]` float32, float16 or bfloat16.
        affinity: on the same device.
        temperature: one for all, `[B]`, or the leading shape of `draft_logits`; at least 0, and 0
            is greedy: one-hot on the likeliest target token of the drafter's likeliest row.
        dynamic_tokens: `[..., C]` int32, extra target ids of each row, -1 for an unused column.
        dynamic_logits: `[..., C]`, their logits, in the dtype of `draft_logits`.
        top_k, top_p, min_p: of the drafter's columns, as in `draft`, in the shapes of
            `temperature`.

    Returns:
        `[..., V_t]` float32, rows sum to 1; NaN where a row is no distribution.

    Example:
        >>> import torch, rdk_cuda
        >>> vocabulary = rdk_cuda.Vocabulary([4, 0, 2], target_size=5)
        >>> affinity = rdk_cuda.Affinity.intersection(vocabulary)
        >>> rdk_cuda.redistribute(torch.zeros(3), affinity)
        tensor([0.3333, 0.0000, 0.3333, 0.0000, 0.3333])
    """
    leading = draft_logits.shape[:-1]
    name, device = "rdk_cuda.redistribute", draft_logits.device
    at = temperatures(name, temperature, leading, device)
    given = {"draft_logits": draft_logits, "temperature": at, "dynamic_logits": dynamic_logits}
    refuse_gradients("redistribute", given)
    with Range("redistribute", leading.numel()):
        probs: Tensor = operators.redistribute(
            draft_logits,
            at,
            *affinity.by_target,
            affinity.row_top,
            dynamic_tokens,
            dynamic_logits,
            *row_limits(name, top_k, top_p, min_p, leading, device),
        )
    return probs


@unless(draft_at_once)
@takes_arrays
def draft(
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: Numbers | None = None,
    *,
    seeds: Integers | None = None,
    positions: Integers | None = None,
    after: Draft | None = None,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Integers | None = None,
    top_p: Numbers | None = None,
    min_p: Numbers | None = None,
    branches: Integers | None = None,
    ahead: int | None = None,
    rows: StepRows | None = None,
) -> Draft:
    """Draw target tokens from the redistributed drafter, without building its distribution.

    DESIGN section 3, idea 1: the drafter token `i ~ softmax(l / T + bias)`, then `x ~ A[i]`.

    Args:
        draft_logits: `[B, V_d]` for the next token of each sequence, or `[B, K, V_d]` for the next
            K at once; float32, float16 or bfloat16.
        affinity: on the same device.
        temperature: one for all or `[B]`; at least 0, and 0 is greedy. 1 if not given.
        seeds: `[B]` int64, a seed for each sequence that stays the same through its decoding, or
            one int from which each sequence gets its own. From torch's generator if not given. The
            key of each step is derived here (DESIGN section 5), from seeds and positions.
        positions: the absolute position of the first token drafted, one for all or `[B]`: how many
            tokens of the sequence are decided. Needed with `seeds`, since without it every step
            would draw the same random numbers; 0 if neither is given.
        after: the previous draft of the same step. Seeds, positions, temperature and limits are
            its own.
        dynamic_tokens: `[B, C]` or `[B, K, C]` int32, extra target ids, -1 for an unused column.
            They may not depend on the token drafted here.
        dynamic_logits: their logits, in the dtype of `draft_logits`.
        top_k, top_p, min_p: one for all or `[B]`: draw only from the drafter's columns (kept,
            virtual and dynamic ones) that these leave, as in `verify`. `verify` knows.
        branches: one for all, `[B]` or `[B, K]`, from 0, the default, to 2^24 - 1: another one for
            each row of a step that is drawn at the same position, as in a tree (DESIGN section 5,
            "More than a chain").
        ahead: that all K rows are for one position, so many after the step's first: the nodes of a
            tree at that depth. One after the other if not given, behind those of `after`.
        rows: where logits `[B, V_d]` are kept until `verify`, with the first draft of a step. Then
            each draft is one call of an operator, and so is `verify`, and nothing is joined.

    Returns:
        A `Draft`, all that `verify` needs. Its tokens are -1 where a row is no distribution.

    Example:
        >>> import torch, rdk_cuda
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
        >>> first = rdk_cuda.draft(torch.zeros(1, 3), affinity, seeds=0, positions=17)
        >>> second = rdk_cuda.draft(torch.zeros(1, 3), affinity, after=first)
        >>> tokens, accepted, _ = rdk_cuda.verify(torch.zeros(1, 3, 5), [first, second], affinity)
    """
    if draft_logits.dim() not in (2, 3):
        raise ValueError(
            f"rdk_cuda.draft: draft_logits has shape {list(draft_logits.shape)}; needs [B, V_d] or "
            "[B, K, V_d]"
        )
    if rows is not None or (after is not None and after.rows is not None):
        by_place = draft_logits.dim() == 2 and branches is None and ahead is None
        if by_place and not torch.compiler.is_compiling():
            given = temperature, seeds, positions, top_k, top_p, min_p
            dynamic = dynamic_tokens, dynamic_logits
            return draft_into_rows(draft_logits, affinity, after, rows, dynamic, given)
        raise ValueError(
            "rdk_cuda.draft: rows are for logits [B, V_d], one place of a step after the other, "
            "outside of compiled code, without branches and ahead; leave rows out for a whole step"
        )
    if draft_logits.dim() == 2:
        draft_logits = draft_logits.unsqueeze(1)
        dynamic_tokens = None if dynamic_tokens is None else dynamic_tokens.unsqueeze(1)
        dynamic_logits = None if dynamic_logits is None else dynamic_logits.unsqueeze(1)
    batch, length, _ = draft_logits.shape
    if after is None:
        name, device = "rdk_cuda.draft", draft_logits.device
        keys, first = step_keys_and_positions(name, seeds, positions, batch, device)
        scale = temperatures(name, 1.0 if temperature is None else temperature, (batch,), device)
        offset = 0
        truncation: tuple[Tensor | None, ...] = row_limits(
            name, top_k, top_p, min_p, (batch,), device
        )
    else:
        check_continues(after, batch, (temperature, seeds, positions, top_k, top_p, min_p))
        truncation = after.limits
        first, scale, keys = after.positions, after.temperature, after.step_keys
        offset = after.offset + after.tokens.shape[1]

    def spread(tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(1) if length == 1 else torch.stack([tensor] * length, 1)

    if ahead is not None or length == 1:
        depth = offset if ahead is None else whole_number("rdk_cuda.draft", "ahead", ahead)
        places = spread(first + depth)
    else:
        depths = torch.arange(offset, offset + length, device=draft_logits.device)
        places = first[:, None] + depths
    tokens, stats = operators.draft(
        draft_logits,
        spread(scale),
        spread(keys),
        places,
        *affinity.by_draft,
        dynamic_tokens,
        dynamic_logits,
        *(None if limit is None else spread(limit) for limit in truncation),
        limits("rdk_cuda.draft", "branches", branches, (batch, length), draft_logits.device),
    )
    return Draft(
        tokens,
        draft_logits,
        stats,
        scale,
        keys,
        first,
        offset,
        dynamic_tokens,
        dynamic_logits,
        truncation,
    )


@unless(verify_rows)
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
) -> Verified:
    """Accept drafted tokens, or replace the first rejected one, so that the output is the target's.

    DESIGN section 2, "Verification"; Leviathan et al., arXiv:2211.17192; Chen et al.,
    arXiv:2302.01318. For packed batches and arenas call `torch.ops.rdk.verify` itself.

    Args:
        target_logits: `[B, K + 1, V_t]` float32, float16 or bfloat16: the target's logits at the
            drafted positions and at the one after them. Rows that are not evenly spaced are copied.
        draft: what `draft` returned for the step, all of it, as one object or in order.
        affinity: the one that was drafted with.
        temperature: the target's, one for all or `[B]`; at least 0, and 0 is greedy.
        top_k: of the target, one for all or `[B]`: only the k largest logits, and those equal to
            the smallest of them. 0 is off.
        top_p: the same for the smallest set of the largest probabilities that sum to `top_p`, above
            0 and at most 1, of what top-k leaves; 1 is off.
        min_p: the same for probabilities of at least `min_p` times the largest, from 0, off, to 1.
        allowed: `[B, K + 1, ceil(V_t / 32)]` int32, one bit for each token: a grammar's mask, in
            the layout of xgrammar and llguidance. The output has the distribution of masking the
            logits, then the temperature, min-p, top-k and top-p (DESIGN section 4, "Truncation").
        logprobs: return log-probabilities of the tokens: of the "processed" distribution, or of the
            "raw" logits at temperature 1.
        method: judge the drafts one by one, or the "block" as a whole (DESIGN section 2, "Block
            verification"; Sun et al., arXiv:2403.10444). Either way the output has the target's
            distribution. By block at least as many drafts are accepted on average, but every row
            of the target is read, not only those up to the first rejection. At temperature 0 both
            are the same.
        draft_rows: `[B, K]` integers, which row of the draft's logits `[B, M, V_d]` each token was
            drawn from; -1 for one that was not drawn. Absent: row k, or none without logits.

    Returns:
        `Verified(tokens [B, K + 1], num_accepted [B], logprobs)`.

    Example: see `draft`.
    """
    name = "rdk_cuda.verify"
    if logprobs not in LOGPROBS:
        raise ValueError(f'{name}: logprobs is {logprobs!r}; needs "processed", "raw" or None')
    step = step_arguments(name, target_logits, draft, affinity, temperature, draft_rows)
    batch, rows = target_logits.shape[:2]
    if allowed is not None:
        check_shape(f"{name}: allowed", allowed, batch, rows, "ceil(V_t / 32)")
    truncation = row_limits(name, top_k, top_p, min_p, (batch,), target_logits.device)
    verified = operators.verify(
        **step,
        **dict(zip(LIMITS, truncation, strict=True)),
        allowed=None if allowed is None else allowed.flatten(0, 1),
        logprobs=LOGPROBS[logprobs],
        method=method_number(name, method),
    )
    return Verified(*verified)


def step_arguments(
    function: str,
    target_logits: Tensor,
    draft: Draft | Sequence[Draft],
    affinity: Affinity,
    temperature: Numbers,
    draft_rows: Tensor | None,
) -> dict[str, Any]:
    """Name what operators that verify take of a step, up to its limits, as a packed list."""
    joined = draft if isinstance(draft, Draft) else Draft.join(draft)
    batch, length = joined.tokens.shape
    if joined.offset != 0:
        raise ValueError(
            f"{function}: draft lacks the first {joined.offset} tokens of its step; pass all "
            "drafts of the step, in order"
        )
    check_shape(f"{function}: target_logits", target_logits, batch, length + 1, "V_t")
    if joined.rows is not None and target_logits.stride(-1) != 1:
        target_logits = target_logits.contiguous()
    device = target_logits.device
    rows = None
    if joined.logits is None:
        rows = torch.full((batch * length,), -1, dtype=torch.int32, device=device)
    elif draft_rows is not None:
        rows = packed_rows(function, draft_rows, (batch, length), joined.logits.shape[1])
    step = packed_step(
        joined,
        affinity,
        target_logits.flatten(0, 1),
        temperatures(function, temperature, (batch,), device),
        torch.arange(batch + 1, dtype=torch.int32, device=device) * length,
        rows,
        length,
    )
    if joined.logits is None:
        step["draft_logits"] = target_logits.new_empty((0, affinity.draft_size))
    return step


@takes_arrays
def gather_logits(
    hidden: Tensor, weight: Tensor, tokens: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Compute the full head's logits for a few tokens, `weight[token] . hidden + bias[token]`.

    DESIGN section 2, "Dynamic tokens".

    Args:
        hidden: `[..., d]` float32, float16 or bfloat16.
        weight: `[V, d]`, the same dtype.
        tokens: `[..., C]` int32 or int64.
        bias: `[V]`, the same dtype.

    Returns:
        `[..., C]` in the dtype of `hidden`, accumulated in float32; `-inf` where a token is outside
        `[0, V)`.

    Example:
        >>> import torch, rdk_cuda
        >>> rdk_cuda.gather_logits(torch.ones(2), torch.eye(3, 2), torch.tensor([1, -1]))
        tensor([1., -inf])
    """
    given = {"hidden": hidden, "weight": weight, "bias": bias}
    refuse_gradients("gather_logits", given)
    logits: Tensor = operators.gather_logits(hidden, weight, tokens, bias)
    return logits


@takes_arrays
def step_keys(seeds: Tensor, positions: Tensor, stage: int = 0) -> Tensor:
    """Make a fresh key for one step, from the user's seed and the position of its first token.

    DESIGN section 5. `draft` calls it. If you call `torch.ops.rdk.draft` and `verify` yourself,
    pass the result as their `step_keys`.

    Args:
        seeds, positions: int64 of one shape.
        stage: of a cascade, whose inner stages have the outer step's key as their seed and each a
            stage of its own, from 1 to 2^32 - 1; 0 for a step of decoding.

    Returns:
        int64 of that shape.

    Example:
        >>> import torch, rdk_cuda
        >>> rdk_cuda.step_keys(torch.tensor([0]), torch.tensor([0]))
        tensor([-2204013331526194987])
    """
    keys: Tensor = operators.step_keys(seeds, positions, stage)
    return keys
