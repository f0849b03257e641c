"""Ground truth in dense algebra: what samplers and the verification are, by definition.

The matrices ``[V_d, V_t]`` of the samplers of DESIGN section 2, at a cost of O(V^2), and the
distributions that speculative sampling has. For tests, small vocabularies and comparisons.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def exact_rdk(omega: Tensor, tau: float) -> Tensor:
    """Compute the exact RDK matrix ``softmax_rows(omega / tau)``, ``[V, V]`` (arXiv:2506.03206)."""
    # Dividing the differences, not the entries, keeps their bits at a small tau.
    return torch.softmax((omega - omega.amax(-1, keepdim=True)) / tau, dim=-1)


def first_order_rdk(mean_probs: Tensor, tau: float) -> Tensor:
    """``exact_rdk(mu mu^T, tau)`` with ``exp(x) ~ 1 + x``, ``[V, V]``; ``mu`` normalised here."""
    mu = mean_probs / mean_probs.sum()
    kernel = tau + torch.outer(mu, mu)
    return kernel / kernel.sum(-1, keepdim=True)


def drafter_rows(matrix: Tensor, draft_ids: Tensor) -> Tensor:
    """Take the rows of ``matrix [V_t, V_t]`` at the drafter's tokens, ``[V_d, V_t]``.

    ``draft_ids`` are their target ids, -1 for a token that the target lacks: a uniform row.
    """
    uniform_row = torch.full_like(matrix[0], 1 / matrix.shape[1])
    return torch.where((draft_ids >= 0)[:, None], matrix[draft_ids], uniform_row)


def with_kept_mass(matrix: Tensor, draft_ids: Tensor, keep: float | Tensor) -> Tensor:
    """``keep E + (1 - keep) M`` of ``M [V_d, V_t]``; ``E`` maps each token to its own target id.

    ``keep`` is one number or ``[V_d]``. A token that the target lacks keeps nothing.

    Example:
        >>> matrix = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
        >>> with_kept_mass(matrix, torch.tensor([1, -1]), 0.5)
        tensor([[0.2500, 0.7500],
                [0.5000, 0.5000]])
    """
    known = draft_ids >= 0
    kept = (torch.as_tensor(keep, dtype=matrix.dtype, device=matrix.device) * known)[:, None]
    own = one_hot(draft_ids.clamp(min=0), matrix.shape[1])
    return kept * own + (1 - kept) * matrix


def cold_mass(draft_ids: Tensor, mean_probs: Tensor) -> Tensor:
    """Kept tokens to themselves, one more row for all the others: ``[V_d + 1, V_t]``.

    That row is ``mean_probs [V_t]`` over the pruned tokens, normalised. The row of a token that
    the target lacks is empty.
    """
    known = draft_ids >= 0
    rows = one_hot(draft_ids.clamp(min=0), mean_probs.shape[0]) * known[:, None]
    cold = mean_probs.index_fill(0, draft_ids[known], 0.0)
    return torch.cat([rows.to(cold.dtype), (cold / cold.sum())[None]])


def exact_redistribute(draft_probs: Tensor, matrix: Tensor) -> Tensor:
    """``q = M^T q'`` for a dense row-stochastic ``M [V_d, V_t]``: ``[..., V_d] -> [..., V_t]``."""
    return draft_probs @ matrix


def acceptance_rate(p: Tensor, q: Tensor) -> Tensor:
    """``sum_x min(p(x), q(x))`` over the last dimension."""
    return torch.minimum(p, q).sum(-1)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """``max(p - q, 0)`` normalised, or ``p`` where that has no mass."""
    excess = (p - q).clamp(min=0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 0, excess / mass, p)


def output_distribution(p: Tensor, q: Tensor, drafted: Tensor | None = None) -> Tensor:
    """Compute the distribution of the token that one speculative position puts out, ``[..., V_t]``.

    ``drafted`` is the distribution that draft tokens are really drawn from. Where it is ``q``, the
    one they are verified with (the default), the result is ``p``: the verification is lossless.
    Where it is not, the result shows by how much the output is wrong.

    Example:
        >>> p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.25, 0.0, 0.75])
        >>> output_distribution(p, q)
        tensor([0.5000, 0.5000, 0.0000])
        >>> output_distribution(p, q, drafted=torch.tensor([1.0, 0.0, 0.0]))
        tensor([1., 0., 0.])
    """
    drafted = q if drafted is None else drafted
    accepted = drafted * torch.where(q > p, p / q, 1.0)
    return accepted + (1 - accepted.sum(-1, keepdim=True)) * residual(p, q)
