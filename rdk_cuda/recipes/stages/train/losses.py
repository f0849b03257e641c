"""Losses between the target and the redistributed drafter."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ...._ops.inputs import Numbers, temperatures
from ....affinity import Affinity
from ....functional import overlap

TV, LOG_ALPHA, LK = "tv", "log-alpha", "lk"
FORWARD_KL, REVERSE_KL, JSD = "forward-kl", "reverse-kl", "jsd"
LOSSES = (TV, LOG_ALPHA, LK, FORWARD_KL, REVERSE_KL, JSD)

_ETA = 3.0  # of `lk`, the paper's best
_LEAST = 2.0**-100  # sums of smaller probabilities have too few digits for a logarithm


class OverlapLoss(nn.Module):
    """How far the redistributed drafter q is from the target p, with a gradient for the drafter.

    With `alpha = sum_x min(p, q)`, the acceptance rate:

    | loss | value | source |
    |---|---|---|
    | `tv` | `1 - alpha`, the total variation | DistillSpec (arXiv:2310.08461), section 4 |
    | `log-alpha` | `-log alpha` | LK losses (arXiv:2602.23881) |
    | `lk` | `w KL(p, q) + (1 - w) (1 - alpha)`, constant `w = exp(-3 alpha)` | the same |
    | `forward-kl`, `reverse-kl` | `KL(p, q)`, `KL(q, p)` | DistillSpec |
    | `jsd` | `(KL(p, m) + KL(q, m)) / 2` with `m = (p + q) / 2` | DistillSpec |

    All are in nats but `tv`, which is a share. The first two are fused (`rdk_cuda.overlap`): they
    keep one bit for each target token. The others keep rows of V_t floats, as logarithms: no loss
    of finite logits overflows, at any temperature, and `log-alpha` does the same where alpha is as
    good as 0. For `KL(p, q)` p is renormalised over the tokens that some drafter token reaches,
    since it would be infinite otherwise. In `KL(q, p)` a token whose target logit is -inf counts as
    the unlikeliest of the others does, or as one of 2^-100.

    Args:
        affinity: from the drafter's V_d tokens to the V_t of the target.
        loss: one of `rdk_cuda.training.LOSSES`.
        temperature: of target and drafter, as in `rdk_cuda.overlap`; above 0.
        reduction: "mean" over rows that have a distribution, or "none".

    Raises:
        ValueError: another loss or reduction.

    Example:
        >>> from rdk_cuda import Vocabulary
        >>> affinity = Affinity.intersection(Vocabulary([4, 0, 2], target_size=5))
        >>> target, drafter = torch.zeros(2, 5), torch.zeros(2, 3, requires_grad=True)
        >>> loss = OverlapLoss(affinity)(target, drafter)
        >>> loss.backward()
        >>> f"{loss.item():.2f}"
        '0.40'
    """

    def __init__(
        self,
        affinity: Affinity,
        loss: str = TV,
        temperature: Numbers = 1.0,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        for name, value, known in (
            ("loss", loss, LOSSES),
            ("reduction", reduction, ("mean", "none")),
        ):
            if value not in known:
                raise ValueError(
                    f"OverlapLoss: {name} is {value!r}; needs one of {', '.join(known)}"
                )
        self.affinity, self.loss, self.temperature = affinity, loss, temperature
        self.reduction = reduction

    def forward(
        self,
        target_logits: Tensor,
        draft_logits: Tensor,
        dynamic_tokens: Tensor | None = None,
        dynamic_logits: Tensor | None = None,
    ) -> Tensor:
        """The loss: a scalar, or `[...]` without a reduction.

        Args:
            target_logits, draft_logits, dynamic_tokens, dynamic_logits: as in `rdk_cuda.overlap`;
                all but those of the target get a gradient. Where only the target's largest
                log-probabilities are known, these, and the others' mass spread evenly, will do.

        Returns:
            float32. Without a reduction NaN, with a gradient of 0, where a row has no distribution,
            or for `log-alpha` and `KL(p, q)` the target's has no token that the drafter reaches.

        Raises:
            RuntimeError: a second derivative of `tv`, `log-alpha` or `lk`, as in `overlap`.
        """
        columns = {"dynamic_tokens": dynamic_tokens, "dynamic_logits": dynamic_logits}
        if self.loss in (TV, LOG_ALPHA, LK):
            alpha = overlap(target_logits, draft_logits, self.affinity, self.temperature, **columns)
            losses = 1 - alpha if self.loss != LOG_ALPHA else -alpha.clamp_min(_LEAST).log()
            if self.loss == LK:
                weight = torch.exp(-_ETA * alpha.detach()).nan_to_num()
                kl = self._divergence(FORWARD_KL, target_logits, draft_logits, **columns)
                losses = weight * kl + (1 - weight) * losses
            elif self.loss == LOG_ALPHA and bool((alpha < _LEAST).any()):
                exact = self._divergence(LOG_ALPHA, target_logits, draft_logits, **columns)
                losses = torch.where(alpha < _LEAST, exact, losses)
        else:
            losses = self._divergence(self.loss, target_logits, draft_logits, **columns)
        if self.reduction == "none":
            return losses
        return losses[~losses.isnan()].mean()

    def _divergence(
        self, loss: str, target_logits: Tensor, draft_logits: Tensor, **columns: Tensor | None
    ) -> Tensor:
        at = _column("OverlapLoss", self.temperature, target_logits)
        log_p = (target_logits.detach().float() / at).log_softmax(-1)
        log_q = redistributed(draft_logits, self.affinity, self.temperature, **columns, log=True)
        reached = log_p.masked_fill(log_q.detach() == -torch.inf, -torch.inf).log_softmax(-1)
        row = reached if loss in (FORWARD_KL, LOG_ALPHA) else log_p
        sound = ~(row[..., 0].isnan() | log_q.detach()[..., 0].isnan())
        logs = (each.masked_fill(~sound[..., None], -1.0) for each in (log_p, log_q, reached))
        log_p, log_q, reached = logs  # no NaN, which would reach the gradient
        if loss == REVERSE_KL:
            finite = log_p.masked_fill(log_p == -torch.inf, math.log(_LEAST))
            losses = _relative_entropy(log_q, log_p.maximum(finite.amin(-1, keepdim=True)))
        elif loss == JSD:
            middle = ((log_p.exp() + log_q.exp()) / 2).clamp_min(_LEAST).log()
            losses = (_relative_entropy(log_p, middle) + _relative_entropy(log_q, middle)) / 2
        elif loss == LOG_ALPHA:
            losses = -torch.minimum(log_p, log_q).logsumexp(-1)
        else:
            losses = _relative_entropy(reached, log_q)
        return losses.masked_fill(~sound, torch.nan)


def redistributed(
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: Numbers = 1.0,
    *,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    log: bool = False,
) -> Tensor:
    """`rdk_cuda.redistribute` with a gradient for the drafter, in plain PyTorch.

    It keeps whole rows: `overlap` is for what needs the acceptance rate alone.

    Args:
        draft_logits: `[..., V_d]`.
        affinity, dynamic_tokens, dynamic_logits: as in `rdk_cuda.overlap`.
        temperature: above 0.
        log: return logarithms, of probabilities that may be too small for float32.

    Returns:
        `[..., V_t]` float32, q or log q. The latter is -inf only where no drafter token reaches a
        target token. NaN where the drafter has no distribution.

    Example:
        >>> from rdk_cuda import Vocabulary
        >>> affinity = Affinity.intersection(Vocabulary([2, 0], target_size=3))
        >>> redistributed(torch.tensor([0.0, 0.0]), affinity)
        tensor([0.5000, 0.0000, 0.5000])
    """
    bias, offsets, drafts, weights, spread, prior = affinity.by_target
    at = _column("redistributed", temperature, draft_logits)
    logits = draft_logits.float() / at
    logits = logits if bias is None else logits + bias
    size, used = logits.shape[-1], None
    if dynamic_tokens is not None and dynamic_logits is not None:
        used = (dynamic_tokens >= 0) & (dynamic_tokens < affinity.target_size)
        own = (dynamic_logits.float() / at).masked_fill(~used, -torch.inf)
        logits = torch.cat([logits, own], dim=-1)
    bad = ~logits.detach().amax(-1, keepdim=True).isfinite()
    probs = logits.masked_fill(bad, 0.0).log_softmax(-1)  # NaN would reach the gradient
    known, every = probs[..., :size], torch.arange(affinity.target_size, device=logits.device)
    parts = [known[..., drafts.long()] + weights.log()]
    targets = every.repeat_interleave(offsets.diff())
    if rank := len(prior):
        of_spread = (known[..., None] + spread.log()).flatten(-2)
        of_prior = _log_sums(of_spread, every[:rank].repeat(size), rank)
        parts.append((of_prior[..., None] + prior.log()).flatten(-2))
        targets = torch.cat([targets, every.repeat(rank)])
    targets = targets.expand(*known.shape[:-1], -1)
    if dynamic_tokens is not None and used is not None:
        parts.append(probs[..., size:])
        targets = torch.cat([targets, torch.where(used, dynamic_tokens, 0).long()], dim=-1)
    q = _log_sums(torch.cat(parts, -1), targets, len(every)).masked_fill(bad, torch.nan)
    return q if log else q.exp()


def _log_sums(logs: Tensor, places: Tensor, size: int) -> Tensor:
    """`[..., size]`, logarithms of sums over the entries of each place; without one -inf."""
    places = places.expand(logs.shape)
    top = logs.new_full((*logs.shape[:-1], size), -torch.inf)
    top = top.scatter_reduce(-1, places, logs.detach(), "amax")
    shift = top.masked_fill(top == -torch.inf, 0.0)
    shares = (logs - shift.gather(-1, places)).exp()
    sums = torch.zeros_like(shift).scatter_add(-1, places, shares)
    return sums.masked_fill(top == -torch.inf, 1.0).log() + top


def _column(name: str, temperature: Numbers, logits: Tensor) -> Tensor:
    """Temperatures as a factor of rows; refuses 0."""
    at = temperatures(name, temperature, logits.shape[:-1], logits.device)
    if not bool((at > 0).all()):
        raise ValueError(f"{name}: temperature is {temperature}; needs to be above 0 everywhere")
    return at.reshape(*at.shape, *[1] * (logits.dim() - at.dim()))


def _relative_entropy(log_p: Tensor, log_q: Tensor) -> Tensor:
    """`sum_x p log(p / q)` over the last dimension; where p is 0 a token counts nothing."""
    return (log_p.exp() * (log_p - log_q).masked_fill(log_p == -torch.inf, 0.0)).sum(-1)
