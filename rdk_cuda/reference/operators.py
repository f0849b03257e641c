"""The operators in plain PyTorch, to be read next to sections 2 to 5 of DESIGN.

They take the arguments of `torch.ops.rdk` in the same order, and work row by row: clear rather than
fast. With `dtype=torch.float64` they are exact enough to judge a float32 implementation. A `Trace`
then tells how close each random decision came to another outcome; only there may an implementation
return another token.
"""

from __future__ import annotations

import itertools
import math
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from .judging import SequenceStep, decide
from .random import DRAFT, STEP, Trace, draw, philox
from .truncation import Limits, threshold, without_forbidden

__all__ = ["draft", "gather_logits", "name_tokens", "redistribute", "step_keys", "verify"]

# --------------------------------------------------------------------------------- the operators


def redistribute(
    draft_logits: Tensor,
    temperature: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    row_top: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Compute q, ``[..., V_t]`` in ``dtype``, differentiable in numbers."""
    lead, v_d, v_t = draft_logits.shape[:-1], draft_logits.shape[-1], prior.shape[1]
    logits, used = _with_dynamic(draft_logits, dynamic_tokens, dynamic_logits, v_t)
    columns = (col_offsets, col_drafts, col_weights, spread, prior)
    probs = torch.full((logits.shape[0], v_t), math.nan, dtype=dtype, device="cpu")
    for n, t in enumerate(temperature.reshape(-1).cpu()):
        z, _ = _truncated(logits[n], t, bias, Limits.of(top_k, top_p, min_p, n), dtype)
        if z is None:
            continue
        if t == 0:
            i = int(z.argmax())
            probs[n] = _one_hot(int(row_top[i] if i < v_d else used[n, i - v_d]), v_t, dtype)
        else:
            probs[n] = _redistributed(z, _stats(z, spread), used[n], columns)
    return probs.reshape(*lead, v_t)


def draft(
    draft_logits: Tensor,
    temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    row_offsets: Tensor,
    row_targets: Tensor,
    row_cdf: Tensor,
    row_top: Tensor,
    spread: Tensor,
    spread_cdf: Tensor,
    prior_cdf: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    branches: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw tokens ``[...]`` and stats ``[..., 2 + R]``, ``3 + R`` if truncated, in ``dtype``."""
    lead, v_d = draft_logits.shape[:-1], draft_logits.shape[-1]
    logits, used = _with_dynamic(draft_logits, dynamic_tokens, dynamic_logits, prior_cdf.shape[1])
    trace = Trace() if trace is None else trace
    tokens = torch.full((logits.shape[0],), -1, dtype=torch.int64, device="cpu")
    truncates = any(limit is not None for limit in (top_k, top_p, min_p))
    shape = (logits.shape[0], 2 + spread.shape[1] + truncates)
    stats = torch.full(shape, math.nan, dtype=dtype, device="cpu")
    for n, t in enumerate(temperature.reshape(-1).tolist()):
        z, least = _truncated(logits[n], t, bias, Limits.of(top_k, top_p, min_p, n), dtype)
        if z is None:
            continue
        words = partial(
            philox,
            int(step_keys.reshape(-1)[n]),
            int(positions.reshape(-1)[n]),
            DRAFT,
            branch=0 if branches is None else int(branches.reshape(-1)[n]),
        )
        if t == 0:
            i, stats[n] = int(z.argmax()), 0
        else:
            cut = torch.tensor([least] * truncates, dtype=z.dtype, device=z.device)
            stats[n] = torch.cat([_stats(z, spread), cut])
            i = draw(torch.exp(z - z.max()), words(0), partial(trace.add, n, "draft"), static=v_d)
        if i >= v_d:
            tokens[n] = used[n, i - v_d]
        elif t == 0:
            tokens[n] = row_top[i]
        else:
            begin, end = row_offsets[i : i + 2].tolist()
            entry = int(torch.searchsorted(row_cdf[begin:end], words(0)[2], right=True))
            if begin + entry < end:
                tokens[n] = row_targets[begin + entry]
            else:
                r = int(torch.searchsorted(spread_cdf[i], words(0)[2], right=True))
                tokens[n] = torch.searchsorted(prior_cdf[r], words(1)[0], right=True)
    return tokens.reshape(lead), stats.reshape(*lead, stats.shape[1])


def verify(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_stats: Tensor | None,
    draft_rows: Tensor | None,
    draft_token_ids: Tensor,
    draft_offsets: Tensor,
    target_temperature: Tensor,
    draft_temperature: Tensor,
    step_keys: Tensor,
    positions: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    max_draft: int,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    top_k: Tensor | None = None,
    top_p: Tensor | None = None,
    min_p: Tensor | None = None,
    allowed: Tensor | None = None,
    logprobs: int = 0,
    method: int = 0,
    *,
    dtype: torch.dtype = torch.float32,
    trace: Trace | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Decide tokens ``[B, max_draft + 1]``, accepted drafts ``[B]``, log-probabilities."""
    batch = step_keys.numel()
    columns = (col_offsets, col_drafts, col_weights, spread, prior)
    dynamic = (dynamic_tokens, dynamic_logits)
    drafter = DrafterRows(draft_logits, draft_stats, bias, columns, dynamic)
    trace = Trace() if trace is None else trace

    def p_at(first: int, t: float, limits: Limits, j: int) -> Tensor | None:
        n = first + j
        words_allowed = None if allowed is None else allowed[n]
        return target_distribution(target_logits[n], t, limits, words_allowed, dtype)

    def q_at(first: int, t: float, j: int, x: int) -> Tensor | None:
        n = first + j
        return drafter.q(n if draft_rows is None else int(draft_rows[n]), t, x, dtype)

    tokens = torch.full((batch, max_draft + 1), -1, dtype=torch.int64, device="cpu")
    num_accepted = torch.zeros(batch, dtype=torch.int32, device="cpu")
    token_logprobs = torch.full(tokens.shape, -math.inf, dtype=dtype, device="cpu")
    for b in range(batch):
        first, drafts = owned(draft_offsets[b : b + 2].tolist(), draft_token_ids.numel())
        drafts = min(drafts, max_draft)
        t, draft_t = float(target_temperature[b]), float(draft_temperature[b])
        step = SequenceStep(
            [int(x) for x in draft_token_ids[first : first + drafts]],
            cache(partial(p_at, first + b, t, Limits.of(top_k, top_p, min_p, b))),
            partial(q_at, first, draft_t),
            int(step_keys[b]),
            int(positions[b]),
            partial(trace.add, b),
        )
        decided = decide(step, method, greedy=t == 0)
        num_accepted[b] = len(decided) - 1
        tokens[b, : len(decided)] = torch.tensor(decided, dtype=torch.int64, device="cpu")
        for j, x in enumerate(decided) if logprobs else ():
            p = step.target(j)
            if x != -1 and p is not None:
                raw = target_logits[first + b + j]
                log_p = p.log() if logprobs == 1 else _raw_log_probabilities(raw, dtype)
                token_logprobs[b, j] = log_p[x]
    return tokens, num_accepted, token_logprobs if logprobs else token_logprobs.new_empty(0)


def gather_logits(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    bias: Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute logits of a few rows of the head, ``[..., C]``; see docs/design.md section 4.

    ``dtype`` is that of the arithmetic and of the result; by default the arithmetic is float32 and
    the result has the dtype of ``hidden``.
    """
    arithmetic = torch.float32 if dtype is None else dtype
    exists = (tokens >= 0) & (tokens < weight.shape[0])
    ids = torch.where(exists, tokens, 0).long()
    logits = (weight[ids].to(arithmetic) * hidden.to(arithmetic).unsqueeze(-2)).sum(-1)
    if bias is not None:
        logits = logits + bias[ids].to(arithmetic)
    return logits.masked_fill(~exists, -math.inf).to(hidden.dtype if dtype is None else dtype)


def name_tokens(
    contexts: Tensor,
    pruned: Tensor | None,
    successor_offsets: Tensor | None,
    successors: Tensor | None,
    recent: int,
    window: int,
    width: int,
    decided: Tensor | None = None,
    drafts: Tensor | None = None,
    place: int = 0,
    lengths: Tensor | None = None,
    slots: Tensor | None = None,
    place_id: Tensor | None = None,
) -> Tensor:
    """Name the dynamic tokens of each row, ``[B, width]`` int32; see docs/design.md section 4."""
    if slots is None:
        rows = len(contexts if decided is None else decided)
        slots = torch.arange(rows, device="cpu")
    place = place if place_id is None else int(place_id)
    size = 2**31 if successor_offsets is None else len(successor_offsets) - 1
    size = size if pruned is None else len(pruned)
    made = []
    for b, slot in enumerate(slots.tolist()):
        text: list[int] = []
        if 0 <= slot < len(contexts):
            length = contexts.shape[1] if lengths is None else int(lengths[slot])
            text += contexts[slot, : max(length, 0)].tolist()
        if decided is not None:
            text += itertools.takewhile(lambda token: token >= 0, decided[b].tolist())
        if drafts is not None and 0 <= slot < len(drafts):
            text += drafts[slot, : max(place, 0)].tolist()
        lately = text[::-1][:window]
        following: list[int] = []
        last = text[-1] if text else -1
        if successor_offsets is not None and successors is not None and 0 <= last < size:
            ends = successor_offsets[last : last + 2].clamp(0, len(successors))
            following = successors[ends[0] : ends[1]].tolist()
        named: list[int] = []
        for tokens, most in ((lately, min(recent, width)), (following, width)):
            for token in tokens:
                offered = 0 <= token < size and (pruned is None or bool(pruned[token]))
                if offered and token not in named and len(named) < most:
                    named.append(token)
        made.append(named + [-1] * (width - len(named)))
    return torch.tensor(made, dtype=torch.int32, device="cpu").view(len(made), width)


def step_keys(seeds: Tensor, positions: Tensor, stage: int = 0) -> Tensor:
    """Derive the key of one decoding step, for each sequence; int64 tensors of one shape."""
    low, high, _, _ = philox(seeds, positions, STEP, stage)
    return low + (high << 32)


# ------------------------------------------------------------------------------- one row, one draw


def _with_dynamic(
    draft_logits: Tensor,
    dynamic_tokens: Tensor | None,
    dynamic_logits: Tensor | None,
    target_size: int,
) -> tuple[Tensor, Tensor]:
    """Put dynamic columns after the static ones, ``[n, V_d + C]``, and return their tokens, too.

    An unused dynamic column gets logit -inf, whatever it was given, and any token.
    """
    static = draft_logits.reshape(math.prod(draft_logits.shape[:-1]), draft_logits.shape[-1])
    if dynamic_tokens is None or dynamic_logits is None:
        return static, torch.zeros(static.shape[0], 0, dtype=torch.int64, device="cpu")
    tokens = dynamic_tokens.reshape(static.shape[0], dynamic_tokens.shape[-1])
    unused = (tokens < 0) | (tokens >= target_size)
    dynamic = dynamic_logits.reshape(tokens.shape).masked_fill(unused, -math.inf)
    return torch.cat([static, dynamic], 1), tokens.masked_fill(unused, 0)


def _scaled(
    logits: Tensor, t: float | Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """``z = logits / T + bias`` of one row, no bias on its dynamic columns; None: no distribution.

    At temperature 0 only the argmax matters, and a finite bias does not count.
    """
    static = torch.zeros(0, dtype=torch.float32, device="cpu") if bias is None else bias
    bias = pad(static, (0, logits.shape[0] - static.shape[0]))
    if not 0 <= t < math.inf or logits.isnan().any() or (logits == math.inf).any():
        return None
    if t == 0:
        z = logits.to(dtype).masked_fill(bias == -math.inf, -math.inf)
        return z if z.max() > -math.inf else None
    # Whether a row overflows is a question about float32, in whatever dtype we compute.
    quotient = logits.float() / t
    if (logits.isfinite() & ~quotient.isfinite()).any() or not (quotient + bias).max().isfinite():
        return None
    # Division leaves -inf what it is, but would give the temperature a gradient of NaN.
    excluded = logits == -math.inf
    z = logits.to(dtype).masked_fill(excluded, 0) / t
    return z.masked_fill(excluded, -math.inf) + bias.to(dtype)


def _truncated(
    logits: Tensor, t: float | Tensor, bias: Tensor | None, limits: Limits, dtype: torch.dtype
) -> tuple[Tensor | None, float]:
    """`_scaled` of one row, -inf below its threshold, and that; at temperature 0 nothing is."""
    z = _scaled(logits, t, bias, dtype)
    if z is None or t == 0 or limits == Limits():
        return z, -math.inf
    deciding = _scaled(logits, t, bias, torch.float32)
    if deciding is None or not limits.usable:
        return None, math.nan
    least = threshold(deciding, limits)
    return _cut(z, logits, t, bias, least), least


def _cut(z: Tensor, logits: Tensor, t: float | Tensor, bias: Tensor | None, least: float) -> Tensor:
    """-inf where a column is below the threshold in float32, in whatever dtype we compute."""
    deciding = _scaled(logits, t, bias, torch.float32)
    return z if deciding is None else z.masked_fill(deciding < least, -math.inf)


def target_distribution(
    logits: Tensor, t: float | Tensor, limits: Limits, allowed: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """p of one row, one-hot at temperature 0; None: it has no distribution."""
    no_bias = torch.zeros(logits.shape[0], dtype=torch.float32, device="cpu")
    z, _ = _truncated(without_forbidden(logits, allowed), t, no_bias, limits, dtype)
    if z is None:
        return None
    return _one_hot(int(z.argmax()), logits.shape[0], dtype) if t == 0 else torch.softmax(z, 0)


class DrafterRows:
    """Rows that drafts were drawn from, with their dynamic columns, and the affinity's columns."""

    def __init__(
        self,
        draft_logits: Tensor,
        stats: Tensor | None,
        bias: Tensor | None,
        columns: tuple[Tensor, ...],
        dynamic: tuple[Tensor | None, Tensor | None],
    ) -> None:
        self.stats, self.bias, self.columns = stats, bias, columns
        # The second are the tokens of the dynamic columns.
        self.logits, self.used = _with_dynamic(draft_logits, *dynamic, columns[-1].shape[1])

    def q(self, m: int, t: float, x: int, dtype: torch.dtype) -> Tensor | None:
        """Compute what x was drawn from, of row m at temperature t; None: rejected by rule."""
        spread, prior = self.columns[3:]
        size = prior.shape[1]
        if not 0 <= x < size or not -1 <= m < self.logits.shape[0]:
            return None
        if m == -1 or t == 0:
            return _one_hot(x, size, dtype)
        z = _scaled(self.logits[m], t, self.bias, dtype)
        if z is None:
            return None
        stats = _stats(z, spread) if self.stats is None else self.stats[m].to(dtype)
        if stats.shape[0] > 2 + spread.shape[1]:
            *_, least = stats.tolist()
            if not least < math.inf:
                return None
            z, stats = _cut(z, self.logits[m], t, self.bias, least), stats[:-1]
        usable = bool(stats.isfinite().all()) and stats[1] > 0
        return _redistributed(z, stats, self.used[m], self.columns) if usable else None


def _raw_log_probabilities(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Take one row at temperature 1; NaN where it has no distribution."""
    no_bias = torch.zeros(logits.shape[0], dtype=torch.float32, device="cpu")
    z = _scaled(logits, 1.0, no_bias, dtype)
    return torch.full_like(no_bias, math.nan).to(dtype) if z is None else torch.log_softmax(z, 0)


def _stats(z: Tensor, spread: Tensor) -> Tensor:
    """``(max, sum, s_r...)`` of one row; its dynamic columns have no spread."""
    weights = torch.exp(z - z.max())
    spread_mass = weights[: spread.shape[0]] @ spread.to(z.dtype) / weights.sum()
    return torch.cat([z.max()[None], weights.sum()[None], spread_mass])


def _redistributed(
    z: Tensor, stats: Tensor, dynamic_tokens: Tensor, columns: tuple[Tensor, ...]
) -> Tensor:
    """``q(x) = sum_i q'_i S[i, x] + sum_r s_r P[r, x]`` with the dynamic columns, ``[V_t]``."""
    col_offsets, col_drafts, col_weights, spread, prior = columns
    v_d, v_t = spread.shape[0], prior.shape[1]
    draft_probs = torch.exp(z - stats[0]) / stats[1]
    entry_targets = torch.repeat_interleave(torch.arange(v_t, device="cpu"), col_offsets.diff())
    q = stats[2:] @ prior.to(z.dtype)
    q.index_add_(0, entry_targets, draft_probs[col_drafts] * col_weights.to(z.dtype))
    q.index_add_(0, dynamic_tokens, draft_probs[v_d:])
    return q


def _one_hot(x: int, size: int, dtype: torch.dtype) -> Tensor:
    return one_hot(torch.tensor(x, dtype=torch.int64, device="cpu"), size).to(dtype)


def owned(offsets: list[int], drafts: int) -> tuple[int, int]:
    """Find a sequence's first draft, and how many it has; none where its offsets make no sense."""
    begin, end = offsets
    if 0 <= begin <= end <= drafts:
        return begin, end - begin
    return min(max(begin, 0), drafts), 0
