"""Virtual tokens (DESIGN section 2, "Virtual tokens"): in closed form, and fitted to samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import FullHead, PrunedDrafter, prune_head
from ...dynamic_tokens import Contexts
from ...vocabulary import Vocabulary
from ..recording import Samples, at_most, held_out_rows
from .virtual_masses import VirtualMasses, virtual_masses

_HELD_OUT = 1 / 3  # of the documents
_MOST_SAMPLES = 2048  # that are used
_STEPS = 40  # of gradient ascent
_RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # relative to the mean square of a hidden state's entry
_BLOCK_ENTRIES = 1 << 25  # logits of pruned tokens that are held at a time, 128 MB


def virtual_drafter(
    full_head: FullHead,
    vocabulary: Vocabulary,
    clusters: Tensor,
    mean_probs: Tensor,
    *,
    dynamic_tokens: Callable[[Contexts], Tensor] | None = None,
) -> PrunedDrafter:
    """The drafter of virtual tokens in closed form (DESIGN section 2): Jensen rows, entropy bias.

    Args:
        clusters: `[V_t]`, from `cluster_pruned_tokens`.
        mean_probs: `[V_t]`, the target's at the temperature of use.

    Example:
        >>> weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]])
        >>> clusters, mean_probs = torch.tensor([-1, 0, 0]), torch.tensor([2.0, 1.0, 1.0])
        >>> drafter = virtual_drafter((weight, None), Vocabulary([0], 3), clusters, mean_probs)
        >>> drafter.weight[1], drafter.affinity.bias[1]
        (tensor([0., 3.]), tensor(0.6931))
    """
    affinity = Affinity.virtual_tokens(vocabulary, clusters, mean_probs)
    head = prune_head(*full_head, vocabulary, virtual=affinity)
    return PrunedDrafter(vocabulary, affinity, *head, dynamic_tokens)


def calibrate_offsets(
    samples: Samples,
    drafter: PrunedDrafter,
    full_head: FullHead,
    temperature: float,
    *,
    held_out: float = _HELD_OUT,
) -> Tensor:
    """Offsets, added to the biases of virtual tokens, for which the target accepts most: `[K]`.

    First one for all, from off (-inf) upwards, then one for each, by projected gradient ascent on
    the masses `exp(offset)`, where off is the boundary 0. A share `held_out` of the documents
    decides between all off, one for all and one for each; the winner is then fitted to all samples,
    at most 2048 evenly spaced ones. A single document leaves one offset for all. Nearly all of the
    target has to be recorded: with 5 % of its mass missing, half of the gain was lost.
    """
    samples = at_most(samples, _MOST_SAMPLES)
    held = held_out_rows(samples.documents, held_out)

    def known(part: Samples) -> VirtualMasses:
        return virtual_masses(part, drafter, full_head, temperature)

    for_each = held_out == 0
    if bool(held.any()):
        fitted, judging = known(samples.select(~held)), known(samples.select(held))
        common = _offset_for_all(fitted)
        off = torch.full_like(common, -math.inf)
        candidates = off, common, _offset_for_each(fitted, common)
        rates = [judging.mean_acceptance(offsets) for offsets in candidates]
        best = rates.index(max(rates))  # on a tie the first: off costs least
        if best == 0:
            return off
        for_each = best == 2
    whole = known(samples)
    common = _offset_for_all(whole)
    return _offset_for_each(whole, common) if for_each else common


def with_offsets(drafter: PrunedDrafter, offsets: Tensor | Sequence[float]) -> PrunedDrafter:
    """The drafter with offsets `[K]` added to its virtual tokens' biases; -inf turns one off."""
    affinity, hot = drafter.affinity, drafter.vocabulary.draft_size
    added = torch.as_tensor(offsets, dtype=torch.float32, device="cpu")
    if added.shape != (affinity.draft_size - hot,):
        raise ValueError(
            f"with_offsets: offsets has shape {list(added.shape)}; needs "
            f"[{affinity.draft_size - hot}], one for each virtual token"
        )
    bias = affinity.bias.clone()
    bias[hot:] += added
    off = bias == -math.inf
    lengths = affinity.row_offsets.diff()
    used = ~off.repeat_interleave(lengths)  # a masked row is empty
    ends = torch.where(off, 0, lengths).cumsum(0).int()
    masked = Affinity(
        bias=bias,
        row_offsets=torch.nn.functional.pad(ends, (1, 0)),
        row_targets=affinity.row_targets[used],
        row_cdf=affinity.row_cdf[used],
        spread_cdf=affinity.spread_cdf.where(~off[:, None], 0),
        prior_cdf=affinity.prior_cdf,
    )
    return replace(drafter, affinity=masked)


@torch.no_grad()
def _offset_for_all(known: VirtualMasses) -> Tensor:
    """The best single offset, -inf if virtual tokens only hurt: `[K]`, all alike."""
    together = known.log_masses.logsumexp(1)
    middle = float(together.median())
    if middle == -math.inf:  # all are masked
        return torch.zeros(known.log_masses.shape[1], dtype=torch.float32, device="cpu")
    rates: dict[float, float] = {}

    def rate(offset: float) -> float:
        if offset not in rates:
            rates[offset] = known.mean_acceptance(offset)
        return rates[offset]

    # From e^-12 of the other columns' mass to e^4 times that, at the median position.
    step = 1.0
    best = max((-math.inf, 0.0, *(step * k - middle for k in range(-12, 5))), key=rate)
    while best > -math.inf and step > 0.01:
        step /= 3
        best = max((best, best - step, best + step, best - 2 * step, best + 2 * step), key=rate)
    return torch.full((known.log_masses.shape[1],), best, dtype=torch.float32, device="cpu")


def _offset_for_each(known: VirtualMasses, common: Tensor) -> Tensor:
    """The best on the path of projected Adam from the common offset: `[K]`."""
    off = bool((common == -math.inf).all())
    start = torch.zeros_like(common) if off else common
    unit = known.masses(start)
    factors = torch.full_like(start, 0.0 if off else 1.0).requires_grad_()
    adam = torch.optim.Adam([factors], lr=0.1)
    decay = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.05, total_iters=_STEPS)
    best, best_rate = factors.detach().clone(), -math.inf
    for _ in range(_STEPS + 1):
        rate = known.acceptance(unit * factors).mean()
        if rate.item() > best_rate:
            best, best_rate = factors.detach().clone(), rate.item()
        adam.zero_grad()
        (-rate).backward()
        adam.step()
        decay.step()
        with torch.no_grad():
            factors.clamp_(min=0)
    fitted = start + best.log()
    # Sums in another order may differ in the last digit; the common offset wins ties.
    worse = known.mean_acceptance(fitted) <= known.mean_acceptance(common)
    return common if worse else fitted


def refine_virtual(
    samples: Samples, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> PrunedDrafter:
    """Move the rows and biases of virtual tokens so that more is accepted, if possible.

    First, ridge regression on the hidden states recovers what Jensen's inequality loses: the true
    `log sum_c exp(h_c . x / T)` of each cluster less the virtual token's logit. Then follows
    gradient ascent on the acceptance. Held-out documents, a third of them, decide how strongly the
    first step is regularised, where the second stops, and whether either is used: the same drafter
    is returned if nothing helped there, or if there is only one document. One that is off stays
    off.
    """
    samples = at_most(samples, _MOST_SAMPLES)
    held = held_out_rows(samples.documents, _HELD_OUT)
    if not bool(held.any()):
        return drafter
    scale = float(samples.hidden.square().mean().sqrt().clamp_min(1e-30))
    inputs = torch.nn.functional.pad(samples.hidden.float() / scale, (0, 1), value=1.0)
    parts = [
        (virtual_masses(samples.select(rows), drafter, full_head, temperature), inputs[rows])
        for rows in (~held, held)
    ]
    (fitted, states), (judging, others) = parts
    gaps = cluster_log_masses(samples.hidden[~held], drafter, full_head, temperature)
    gaps -= virtual_logits(samples.hidden[~held], drafter, temperature)
    gaps = gaps.where(gaps.isfinite(), 0.0)

    def rate(change: Tensor) -> float:
        return judging.mean_acceptance(others @ change)

    nothing = torch.zeros(inputs.shape[1], gaps.shape[1], dtype=torch.float32, device="cpu")
    best = max((nothing, *_ridge(states, gaps)), key=rate)
    best = _ascend(fitted, states, best, rate)
    if not rate(best) > rate(nothing):
        return drafter
    hot = drafter.vocabulary.draft_size
    weight = drafter.weight.clone()
    weight[hot:] += (best[:-1].T * (temperature / scale)).to(weight.dtype)
    return with_offsets(replace(drafter, weight=weight), best[-1])


@torch.no_grad()
def cluster_log_masses(
    hidden: Tensor, drafter: PrunedDrafter, full_head: FullHead, temperature: float
) -> Tensor:
    """`log sum_c exp((h_c . x + b_c) / T)` over what each virtual token leads to: `[n, K]`."""
    weight, bias = full_head
    affinity, hot = drafter.affinity, drafter.vocabulary.draft_size
    offsets = affinity.row_offsets.tolist()
    masses = torch.full(
        (hidden.shape[0], affinity.draft_size - hot), -math.inf, dtype=torch.float32, device="cpu"
    )
    for c in range(masses.shape[1]):
        members = affinity.row_targets[offsets[hot + c] : offsets[hot + c + 1]].long()
        if not members.numel():
            continue
        rows, constants = weight[members], None if bias is None else bias[members]
        block = max(1, _BLOCK_ENTRIES // members.numel())
        parts = [torch.nn.functional.linear(x, rows, constants) for x in hidden.split(block)]
        masses[:, c] = torch.cat([(part.float() / temperature).logsumexp(1) for part in parts])
    return masses


@torch.no_grad()
def virtual_logits(hidden: Tensor, drafter: PrunedDrafter, temperature: float) -> Tensor:
    """`logits / T + bias` of the virtual tokens: `[n, K]` float32."""
    hot = drafter.vocabulary.draft_size
    bias = None if drafter.bias is None else drafter.bias[hot:]
    logits = torch.nn.functional.linear(hidden, drafter.weight[hot:], bias)
    return logits.float() / temperature + drafter.affinity.bias[hot:]


def _ridge(states: Tensor, gaps: Tensor) -> list[Tensor]:
    """Regressions `[d + 1, K]` of the gaps on the states, from weak to strong penalty."""
    double = states.double()
    gram, cross = double.T @ double, double.T @ gaps.double()
    penalty = torch.full((gram.shape[0],), float(len(states)), dtype=torch.float64, device="cpu")
    penalty[-1] *= 1e-6  # the constant is hardly penalised
    return [
        torch.linalg.solve(gram + torch.diag(ridge * penalty), cross).float() for ridge in _RIDGES
    ]


def _ascend(
    fitted: VirtualMasses, states: Tensor, start: Tensor, rate: Callable[[Tensor], float]
) -> Tensor:
    change = start.clone().requires_grad_()
    # A step moves a logit by about 0.02, however wide the hidden state is.
    adam = torch.optim.Adam([change], lr=0.02 / states.shape[1] ** 0.5)
    best, best_rate = start, rate(start)
    for step in range(1, _STEPS + 1):
        adam.zero_grad()
        (-fitted.acceptance(fitted.masses(states @ change)).mean()).backward()
        adam.step()
        if step % 5 == 0:
            now = change.detach().clone()
            if rate(now) > best_rate:
                best, best_rate = now, rate(now)
    return best
