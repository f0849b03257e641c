"""The loss of a drafter that learns the target's distributions, over as many tokens as pay off."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from examples.demo.gemma import fast_dtype

# Logits of this many positions are held at a time: those of 32,768 tokens stay in the cache.
LOSS_ROWS = 64


class Distillation(torch.autograd.Function):
    """Cross-entropy of `softmax(states head^T + c)` under `softmax(final target_head^T + c)`.

    c is `log_counts`. Row by row, so that the logits of a whole batch never exist. Products are
    taken in `fast_dtype()`.

    Args:
        states: `[D, n, d]`, the drafter's at D depths of a draft, all for the same n predictions.
        head: `[C, d]` rows.
        final: `[n, d_t]`, the target's states for these predictions.
        target_head: `[C, d_t]` rows of the same tokens.
        weights: `[D, n]`, what each row counts; 0 for none.
        log_counts: `[C]`, the logarithm of how many tokens a column stands for.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        head: Tensor,
        final: Tensor,
        target_head: Tensor,
        weights: Tensor,
        log_counts: Tensor,
    ) -> Tensor:
        with torch.no_grad():
            dtype = fast_dtype()
            rows, columns = states.to(dtype), head.to(dtype)
            target_rows, target_columns = final.to(dtype), target_head.to(dtype)
            state_gradient = torch.empty_like(rows)
            head_gradient = torch.zeros_like(head) if head.requires_grad else None
            total = torch.zeros(())
            for part in torch.arange(len(final)).split(LOSS_ROWS):
                expected = (target_rows[part] @ target_columns.T).float()
                expected = expected.add_(log_counts).softmax(-1)
                for depth, weight in enumerate(weights[:, part, None]):
                    logits = (rows[depth, part] @ columns.T).float().add_(log_counts)
                    normalizer = logits.logsumexp(-1, keepdim=True)
                    agreed = torch.linalg.vecdot(expected, logits)[:, None]
                    total += (weight * (normalizer - agreed)).sum()
                    error = logits.sub_(normalizer).exp_().sub_(expected).mul_(weight).to(dtype)
                    state_gradient[depth, part] = error @ columns
                    if head_gradient is not None:
                        head_gradient += error.T @ rows[depth, part]
            ctx.save_for_backward(state_gradient.to(states.dtype), head_gradient)
            return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        state_gradient, head_gradient = ctx.saved_tensors
        scaled = None if head_gradient is None else head_gradient * gradients[0]
        return state_gradient * gradients[0], scaled, None, None, None, None


def sampled_columns(
    order: Tensor, present: Tensor, size: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The columns of a large head that one step's loss counts, and how many each stands for.

    Three quarters are the most frequent tokens, next to which the text's own are always there. The
    others are drawn from the rest, and stand for all of it: the normalizers' expected values are
    those of the whole head.

    Args:
        order: `[V_d]` columns, the most frequent first.
        present: columns of the step's own text.
        size: how many to take, besides the text's own.
        generator: of the draws.

    Returns:
        `[C]` columns and the `[C]` logarithms of how many they stand for.
    """
    if len(order) <= size:
        return torch.arange(len(order)), torch.zeros(len(order))
    certain = torch.zeros(len(order), dtype=torch.bool)
    certain[order[: 3 * size // 4]] = True
    certain[present] = True
    rest = (~certain).nonzero().squeeze(1)
    drawn = rest[torch.randperm(len(rest), generator=generator)[: size // 4]]
    columns = torch.cat([certain.nonzero().squeeze(1), drawn])
    log_counts = torch.zeros(len(columns))
    log_counts[-len(drawn) :] = math.log(len(rest) / len(drawn))
    return columns, log_counts
