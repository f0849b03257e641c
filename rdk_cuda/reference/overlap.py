"""The acceptance rate in plain PyTorch, and its gradient (DESIGN section 2, "Acceptance rate")."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from .operators import _redistributed, _scaled, _stats, _with_dynamic, target_distribution
from .truncation import Limits


def overlap(
    target_logits: Tensor,
    draft_logits: Tensor,
    target_temperature: Tensor,
    draft_temperature: Tensor,
    bias: Tensor | None,
    col_offsets: Tensor,
    col_drafts: Tensor,
    col_weights: Tensor,
    spread: Tensor,
    prior: Tensor,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute alpha, differentiable, the bits of M and ``(max, sum, Q(M), P_r(M)...)``."""
    lead, rank, v_t = target_logits.shape[:-1], spread.shape[1], prior.shape[1]
    targets = target_logits.reshape(math.prod(lead), v_t)
    logits, used = _with_dynamic(draft_logits, dynamic_tokens, dynamic_logits, v_t)
    columns = (col_offsets, col_drafts, col_weights, spread, prior)
    rows = math.prod(lead)
    alpha = torch.full((rows,), math.nan, dtype=dtype, device="cpu")
    stats = torch.full((rows, 3 + rank), math.nan, dtype=dtype, device="cpu")
    below = torch.zeros(rows, -(-v_t // 32) * 32, dtype=torch.int64, device="cpu")
    temperatures = zip(target_temperature.reshape(-1), draft_temperature.reshape(-1), strict=True)
    for n, (of_target, of_draft) in enumerate(temperatures):
        p = target_distribution(targets[n], of_target, Limits(), None, dtype)
        z = _scaled(logits[n], of_draft, bias, dtype) if of_draft != 0 else None
        if p is None or z is None:
            continue
        of_row = _stats(z, spread)
        q = _redistributed(z, of_row, used[n], columns)
        alpha[n] = torch.minimum(p, q).sum()
        smaller = q.detach() < p.detach()
        below[n, :v_t] = smaller
        masses = torch.cat([q[None], prior.to(dtype)])[:, smaller].sum(1)
        stats[n] = torch.cat([of_row[:2], masses]).detach()
    words = (below.unflatten(1, (-1, 32)) << torch.arange(32, device="cpu")).sum(2)
    signed = torch.where(words < 2**31, words, words - 2**32).int()
    return alpha.reshape(lead), signed.reshape(*lead, -(-v_t // 32)), stats.reshape(*lead, 3 + rank)


def overlap_backward(
    grad: Tensor,
    below: Tensor,
    stats: Tensor,
    draft_logits: Tensor,
    draft_temperature: Tensor,
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
    *,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Differentiate alpha by the drafter's logits and by the dynamic ones (DESIGN section 2)."""
    lead, v_d, v_t = draft_logits.shape[:-1], draft_logits.shape[-1], prior_cdf.shape[1]
    logits, used = _with_dynamic(draft_logits, dynamic_tokens, dynamic_logits, v_t)
    of_entry = torch.repeat_interleave(torch.arange(v_d, device="cpu"), row_offsets.diff())
    first = torch.arange(len(row_cdf), device="cpu") == row_offsets[:-1].long()[of_entry]
    entries = (row_cdf - row_cdf.roll(1).masked_fill(first, 0)).to(dtype) * 2.0**-32
    static = torch.zeros(v_d, dtype=dtype, device="cpu") if bias is None else bias.to(dtype)
    shift = pad(static, (0, logits.shape[1] - v_d))
    places = torch.arange(32, device="cpu")
    grads = torch.zeros(logits.shape, dtype=dtype, device="cpu")
    for n, t in enumerate(draft_temperature.reshape(-1)):
        top, total, of_below, *priors = stats.reshape(-1, stats.shape[-1])[n].to(dtype)
        if not (0 < t < math.inf and total > 0):
            continue
        words = below.reshape(-1, below.shape[-1])[n]
        bits = (words[:, None] >> places & 1).flatten()[:v_t].to(dtype)
        mass = torch.zeros(v_d, dtype=dtype, device="cpu")
        mass = mass.index_add(0, of_entry, entries * bits[row_targets.long()])
        for r, of_prior in enumerate(priors):
            mass = mass + spread[:, r].to(dtype) * of_prior
        mass = torch.cat([mass, bits[used[n]]])
        weight = torch.exp(logits[n].to(dtype) / t + shift - top) / total
        grads[n] = weight * (mass - of_below) * (grad.reshape(-1)[n].to(dtype) / t)
    return (
        grads[:, :v_d].reshape(draft_logits.shape),
        grads[:, v_d:].reshape(*lead, logits.shape[1] - v_d),
    )
