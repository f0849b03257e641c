"""Tests whether a peer samples correctly: a fast but wrong sampler is no comparison.

Every test has a false-alarm rate of `FALSE_ALARM` for a right sampler. Of many steps on the same
logits, the tokens of each place are compared with the target's distribution there by a chi-square
test, of the steps that come so far. The number of accepted drafts is compared with its expectation
by Bernstein's inequality, which needs no approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from examples.demo.chi_square import chi_square
from rdk_cuda import Affinity

from ..bench import eager
from .samplers import SPECULATIVE, Decided, Step

FALSE_ALARM = 1e-6


@dataclass(frozen=True)
class Verdict:
    """What a test says: `wrong` is the reason, or None. Its figures are plain data."""

    wrong: str | None
    figures: dict[str, Any]


def check(
    sampler: Callable[[Step], Decided],
    step: Step,
    affinity: Affinity,
    *,
    draws: int,
    acceptance: str = SPECULATIVE,
) -> Verdict:
    """Test a sampler on one sequence's logits, `[K, 1, V_d]` and `[1, K + 1, V_t]`.

    Args:
        sampler: of whole steps.
        draws: steps, in calls of at most 4096 sequences.
        acceptance: its rule, as `Peer.acceptance`.
    """
    p = torch.softmax(step.target_logits[0].double().cpu() / float(step.temperature), 1)
    rates = acceptance_rates(step, affinity, acceptance)[0]
    decided, accepted = [], []
    for call in range(math.ceil(draws / 4096)):
        size = min(4096, draws - 4096 * call)
        tokens, num_accepted = sampler(repeated(step, size, call))
        if (wrong := _malformed(tokens, num_accepted, step)) is not None:
            return Verdict(wrong, {})
        decided.append(tokens.cpu())
        accepted.append(num_accepted.cpu())
    tokens, counts = torch.cat(decided), torch.cat(accepted)
    fits = [chi_square(tokens[counts >= j, j], p[j]) for j in range(len(p))]
    mean, variance = accepted_moments(rates[None])
    chance = chance_of_deviation(
        float(counts.sum()) - draws * mean, draws * variance, most=len(rates)
    )
    figures = {
        "draws": draws,
        "token_probabilities": [fit.probability for fit in fits],
        "accepted_mean": float(counts.double().mean()),
        "accepted_expected": mean,
        "accepted_probability": chance,
        "false_alarm": FALSE_ALARM,
    }
    for place, fit in enumerate(fits, 1):
        if fit.probability < FALSE_ALARM:
            return Verdict(f"token {place} of a step is not the target's ({fit.chance})", figures)
    if chance < FALSE_ALARM:
        told = f"accepts {figures['accepted_mean']:.3f} drafts of {mean:.3f}"
        return Verdict(f"{told} (p < {FALSE_ALARM:g})", figures)
    return Verdict(None, figures)


def check_accepted(counts: Sequence[Tensor], rates: Sequence[Tensor]) -> Verdict:
    """Test accepted drafts of many calls, at the shapes that are timed.

    Args:
        counts: `[B]` of each call.
        rates: `[B, K]` of the inputs of each call.
    """
    moments = [accepted_moments(each) for each in rates]
    mean, variance = (sum(each[i] for each in moments) for i in (0, 1))
    number = sum(each.shape[0] for each in rates)
    total = float(sum(int(each.sum()) for each in counts))
    chance = chance_of_deviation(total - mean, variance, most=rates[0].shape[1])
    figures = {
        "steps": number,
        "accepted_mean": total / number,
        "accepted_expected": mean / number,
        "accepted_probability": chance,
        "false_alarm": FALSE_ALARM,
    }
    if chance >= FALSE_ALARM:
        return Verdict(None, figures)
    told = f"accepts {total / number:.3f} drafts of {mean / number:.3f} at this size"
    return Verdict(f"{told} (p < {FALSE_ALARM:g})", figures)


def repeated(step: Step, size: int, call: int) -> Step:
    """The same logits for `size` sequences, each with a seed of its own."""
    seeds = torch.arange(size, device=step.seeds.device) + size * call
    return Step(
        step.draft_logits.expand(-1, size, -1).contiguous(),
        step.target_logits.expand(size, -1, -1).contiguous(),
        step.temperature.expand(size).contiguous(),
        seeds,
        step.positions.expand(size).contiguous(),
    )


def acceptance_rates(step: Step, affinity: Affinity, acceptance: str = SPECULATIVE) -> Tensor:
    """The probability that draft k is accepted where those before it are, float64 `[B, K]`."""
    length = step.draft_logits.shape[0]
    entries, rates = eager.Entries.of(affinity), []
    for k in range(length):  # one position at a time: q is as wide as the target's vocabulary
        q = eager.redistribute(step.draft_logits[k], step.temperature, entries)
        p = torch.softmax(step.target_logits[:, k].float() / step.temperature[:, None], 1)
        met = torch.minimum(p, q) if acceptance == SPECULATIVE else p * q
        rates.append(met.sum(1, dtype=torch.float64).clamp(max=1))
    return torch.stack(rates, 1).cpu()


def accepted_moments(rates: Tensor) -> tuple[float, float]:
    """Mean and variance of all accepted drafts together, of rates `[B, K]`.

    Example:
        >>> accepted_moments(torch.tensor([[0.5, 1.0], [0.0, 1.0]], dtype=torch.float64))
        (1.0, 1.0)
    """
    reached = rates.cumprod(1)  # P(N > k), so E N is their sum and E N^2 = sum (2 k + 1) P(N > k)
    odd = 2 * torch.arange(rates.shape[1]) + 1
    mean = reached.sum(1)
    return float(mean.sum()), float(((reached * odd).sum(1) - mean**2).sum())


def chance_of_deviation(deviation: float, variance: float, most: int) -> float:
    """A bound on the probability that a sum of independent numbers in [0, most] deviates so far.

    Bernstein's inequality, both sides.

    Example:
        >>> f"{chance_of_deviation(0.0, 1.0, 4):.0f} {chance_of_deviation(50.0, 100.0, 4):.1e}"
        '1 1.1e-03'
    """
    if deviation == 0:
        return 1.0
    exponent = deviation**2 / (2 * (variance + most * abs(deviation) / 3))
    return min(1.0, 2 * math.exp(-exponent))


def _malformed(tokens: Tensor, num_accepted: Tensor, step: Step) -> str | None:
    """Why outputs cannot be those of a speculative sampler; None if they can."""
    size, vocabulary = step.target_logits.shape[1:]
    if not bool(((num_accepted >= 0) & (num_accepted < size)).all()):
        return f"num_accepted is outside [0, {size - 1}]"
    place = torch.arange(size, device=tokens.device)
    past_end = place > num_accepted[:, None]
    inside = (tokens >= 0) & (tokens < vocabulary)
    if not bool((inside | past_end).all()):
        return f"tokens are outside [0, {vocabulary})"
    return None
