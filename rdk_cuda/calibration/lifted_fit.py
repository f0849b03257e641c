"""Lifted rows fitted to what the target accepts (DESIGN section 2, "Lifted rows")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..vocabulary import Vocabulary
from .lifted import LiftedRows, column_of
from .recording import Each, Samples
from .recording.samples import at_most, held_out_rows

__all__ = ["refitted_rows"]

_HELD_OUT = 1 / 5  # of the documents
_EPOCHS, _BATCH = 4, 64
_WORK = 5e12  # products for the pruned tokens' logits, which take most of the time
_STEP = 0.02  # of a logit at most, if all of a state and a row pull together
_SHIFT_STEP = 0.05
_LIKELIHOOD = 0.03  # of it next to the acceptance, which has no slope where q is far too small


def refitted_rows(
    lifted: LiftedRows,
    target_head: Tensor,
    own: Tensor,
    vocabulary: Vocabulary,
    samples: Samples,
    each: Each | None = None,
) -> LiftedRows:
    """Lifted rows with the map and the shift that the target accepts most on a recording.

    The objective is `sum_x min(p, q)` of the whole lifted head, the mean over the recorded
    temperatures, plus 0.03 times the log-likelihood. The drafter's own rows stay as they are. A
    fifth of the documents is held out, and the given rows are returned unless the new ones are
    better there.

    Adam takes 4 epochs over the samples, or over as many of them as 5e12 products allow: all of
    20,000 for heads of 16,384 x 192, some 3,000 for 128,256 x 4,096, in 7 minutes on two cores.

    Args:
        lifted: rows from `lift_rows` and `shifted_rows`.
        target_head: `[V_t, d_t]`; the work is done on its device.
        own, vocabulary, samples: as of `shifted_rows`.
        each: shows the progress.
    """
    held = held_out_rows(samples.documents, _HELD_OUT)
    if not bool(held.any()):
        return lifted
    fit = _Fit(target_head, own, vocabulary, lifted.log_prior)
    products = _EPOCHS * vocabulary.pruned.numel() * target_head.shape[1]
    fitted = at_most(samples.select(~held), max(1, int(_WORK / products)))
    judging = at_most(samples.select(held), max(1, len(fitted) // 4))
    batches = _batches(len(fitted))
    shown = batches if each is None else each(batches, "Calibrating: fitting lifted rows")
    map_ = lifted.map.to(fit.device, copy=True).requires_grad_()
    shift = lifted.shift.to(fit.device, copy=True).requires_grad_()
    typical = target_head[vocabulary.pruned[:4096].to(target_head.device)].float().norm(dim=1)
    step = _STEP / float(typical.mean() * fitted.hidden.norm(dim=1).mean())
    groups = [{"params": [map_], "lr": step}, {"params": [shift], "lr": _SHIFT_STEP}]
    adam = torch.optim.Adam(groups)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.02, total_iters=len(batches))
    for batch in shown:
        with torch.enable_grad():
            loss = -fit.objective(fitted.select(batch), map_, shift, _LIKELIHOOD)
        adam.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        adam.step()
        decay.step()
    found = replace(lifted, map=map_.detach().cpu(), shift=shift.detach().cpu(), refitted=True)
    if not bool(found.map.isfinite().all()):
        return lifted
    rates = [fit.acceptance(judging, one) for one in (lifted, found)]
    return found if rates[1] > rates[0] else lifted


def _batches(count: int) -> Sequence[Tensor]:
    """Every sample once an epoch, in an order that is always the same."""
    random = torch.Generator().manual_seed(0)
    orders = [torch.randperm(count, generator=random, device="cpu") for _ in range(_EPOCHS)]
    return [batch for order in orders for batch in order.split(_BATCH)]


class _Fit:
    """The whole lifted head on samples.

    Args:
        target_head, own, vocabulary, log_prior: as of `refitted_rows`.
    """

    def __init__(
        self, target_head: Tensor, own: Tensor, vocabulary: Vocabulary, log_prior: Tensor
    ) -> None:
        self.device = target_head.device
        pruned = vocabulary.pruned
        self.rows = target_head[pruned.to(self.device)]
        self.own = own.to(self.device).float()
        self.log_prior = log_prior[pruned].to(self.device)
        self.column = column_of(vocabulary)

    def objective(self, samples: Samples, map_: Tensor, shift: Tensor, likelihood: float) -> Tensor:
        """The mean of `sum_x min(p, q)` over samples and temperatures, and of `sum_x p log q`."""
        hidden = samples.hidden.to(self.device)
        mapped = torch.nn.functional.linear(hidden, map_)
        width = self.rows.shape[1]
        lifted = torch.nn.functional.linear(mapped[:, :width].to(self.rows), self.rows).float()
        slopes = mapped[:, width + 1 :] + shift[1]
        lifted = lifted + mapped[:, width : width + 1] + shift[0] + slopes * self.log_prior
        logits = torch.cat([torch.nn.functional.linear(hidden, self.own), lifted], dim=1)
        columns = self.column[samples.targets.long()].to(self.device)
        total = logits.new_zeros(())
        for temperature in samples.temperatures:
            p = samples.target_probs(temperature).to(self.device)
            log_q = (logits / temperature).log_softmax(1).gather(1, columns)
            total = total + torch.minimum(p, log_q.exp()).sum(1).mean()
            if likelihood:
                total = total + likelihood * (p * log_q).sum(1).mean()
        return total / len(samples.temperatures)

    @torch.no_grad()
    def acceptance(self, samples: Samples, lifted: LiftedRows) -> float:
        """The mean over samples and temperatures."""
        map_, shift = lifted.map.to(self.device), lifted.shift.to(self.device)
        total = 0.0
        for batch in torch.arange(len(samples), device="cpu").split(_BATCH):
            part = samples.select(batch)
            total += len(part) * float(self.objective(part, map_, shift, 0.0))
        return total / len(samples)
