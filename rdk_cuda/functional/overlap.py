"""`rdk::overlap` with its gradient: the acceptance rate of a drafter, for training it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.gradients import refuse_gradients
from .._ops.inputs import Numbers, takes_arrays, temperatures
from ..affinity import Affinity


class _Overlap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        draft_logits: Tensor,
        dynamic_logits: Tensor | None,
        dynamic_tokens: Tensor | None,
        target_logits: Tensor,
        target_temperature: Tensor,
        draft_temperature: Tensor,
        by_target: tuple[Tensor, ...],
        by_draft: tuple[Tensor, ...],
    ) -> Tensor:
        alpha, below, stats = operators.overlap(
            target_logits,
            draft_logits,
            target_temperature,
            draft_temperature,
            *by_target,
            dynamic_tokens,
            dynamic_logits,
        )
        ctx.save_for_backward(
            below, stats, draft_logits, draft_temperature, dynamic_tokens, dynamic_logits
        )
        ctx.by_draft = by_draft
        kept: Tensor = alpha
        return kept

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        below, stats, draft_logits, temperature, tokens, logits = ctx.saved_tensors
        rows = grad.contiguous(), below, stats, draft_logits, temperature
        draft_grads, dynamic_grads = _Gradient.apply(*rows, *ctx.by_draft, tokens, logits)
        return draft_grads, None if logits is None else dynamic_grads, *(None,) * 6


class _Gradient(torch.autograd.Function):
    """Differentiate `overlap`, once: a second derivative would silently be 0."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor | None) -> tuple[Tensor, Tensor]:
        grads: tuple[Tensor, Tensor] = operators.overlap_backward(*arguments)
        return grads

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> NoReturn:
        raise RuntimeError(
            "rdk_cuda.overlap: a second derivative was asked for, and it has the first alone; "
            "leave out create_graph=True, or use rdk_cuda.reference.overlap, which has both"
        )


@takes_arrays
def overlap(
    target_logits: Tensor,
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: Numbers = 1.0,
    *,
    draft_temperature: Numbers | None = None,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
) -> Tensor:
    """Compute the acceptance rate `sum_x min(p(x), q(x))`, with a gradient for the drafter.

    q is the redistributed drafter (DESIGN section 2, "Acceptance rate"), so what is trained is what
    is accepted, pruned tokens included: `1 - alpha` is the total variation of p and q, the loss
    that DistillSpec (arXiv:2310.08461, section 4) calls TVD. Neither row of V_t probabilities is
    kept for the gradient, only one bit for each token.

    Args:
        target_logits: `[..., V_t]` float32, float16 or bfloat16. A constant: it gets no gradient.
        draft_logits: `[..., V_d]`, the same rows.
        affinity: on the same device.
        temperature: the target's, one for all, `[B]`, or the leading shape of `target_logits`; at
            least 0.
        draft_temperature: the drafter's, above 0; that of the target if not given.
        dynamic_tokens: `[..., C]` int32, extra target ids of each row, -1 for an unused column.
        dynamic_logits: `[..., C]`, their logits, in the dtype of `draft_logits`; they get a
            gradient, too.

    Returns:
        `[...]` float32. NaN, with a gradient of 0, where either row is no distribution, or where
        the drafter's temperature is 0: a greedy drafter has no gradient.

    Raises:
        RuntimeError: if `target_logits` or a temperature requires grad, or a second derivative is
            asked for.

    Example:
        >>> import torch, rdk_cuda
        >>> affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
        >>> logits = torch.zeros(3, requires_grad=True)
        >>> alpha = rdk_cuda.overlap(torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0]), logits, affinity)
        >>> (1 - alpha).backward()
        >>> logits.grad
        tensor([ 0.1111, -0.2222,  0.1111])
    """
    name, device, leading = "rdk_cuda.overlap", target_logits.device, target_logits.shape[:-1]
    at = temperatures(name, temperature, leading, device)
    drafted = at
    if draft_temperature is not None:
        drafted = temperatures(name, draft_temperature, leading, device)
    constant = {"target_logits": target_logits, "temperature": at, "draft_temperature": drafted}
    refuse_gradients("overlap", constant)
    alpha: Tensor = _Overlap.apply(
        draft_logits,
        dynamic_logits,
        dynamic_tokens,
        target_logits,
        at,
        drafted,
        affinity.by_target,
        affinity.by_draft,
    )
    return alpha
