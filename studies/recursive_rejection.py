"""Recursive speculative decoding (RSD, arXiv:2402.14160) in plain PyTorch: trees whose siblings are
drawn without replacement. `studies/rsd.py` decodes with them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rdk_cuda.reference import residual


class Beam(NamedTuple):
    """Nodes of one depth of a tree, in the order in which they are tried.

    Attributes:
        tokens: ``[..., w]`` int64, -1 for no node.
        parents: ``[..., w]`` int64, nodes of the beam before.
        log_probs: ``[..., w]`` of each branch under the drafter.
        perturbed: ``[..., w]`` the same with Gumbel noise, descending; no node has ``-inf``.
    """

    tokens: Tensor
    parents: Tensor
    log_probs: Tensor
    perturbed: Tensor

    @classmethod
    def root(cls, like: Tensor) -> Beam:
        """The root alone, for logarithms ``[..., 1, V]``."""
        zero = like.new_zeros(like.shape[:-1])
        return cls(zero.long(), zero.long(), zero, zero)


def gumbel_top_k(log_q: Tensor, noise: Tensor, count: int) -> Tensor:
    """Tokens drawn one after the other without replacement (Vieira 2014; RSD-C of section 3.1).

    Args:
        log_q: ``[..., V]``, float64.
        noise: ``[..., V]``, independent standard Gumbel variables; zeros take the likeliest tokens.
        count: how many, in a tree with constant branching the children of each node.

    Returns:
        ``[..., count]`` int64, -1 where q has no more tokens.

    Example:
        >>> log_q = torch.tensor([0.5, 0.2, 0.3, 0.0]).double().log()
        >>> gumbel_top_k(log_q, torch.zeros(4).double(), 4)
        tensor([ 0,  2,  1, -1])
    """
    top = (log_q + noise).topk(count)
    return top.indices.where(top.values > -torch.inf, -1)


def beam_search_step(log_q: Tensor, beam: Beam, noise: Tensor | None, width: int) -> Beam:
    """One more level of a stochastic beam search (Kool et al., arXiv:1903.06059; RSD-S).

    Branches are drawn without replacement. So are siblings, and how many a node has depends on no
    sibling that is not tried before.

    Args:
        log_q: ``[..., n, V]``, float64, behind each node of the beam.
        beam: with n nodes.
        noise: of this shape, independent standard Gumbel variables; None: the likeliest branches.
        width: the most nodes of the next beam.
    """
    log_probs = beam.log_probs[..., None] + log_q
    perturbed = log_probs
    if noise is not None:
        # Given that the largest of a node's children is the node's own (appendix B.3 there).
        perturbed, own = log_probs + noise, beam.perturbed[..., None]
        below = torch.log1p(-(perturbed - perturbed.amax(-1, keepdim=True)).exp())
        shifted = own - perturbed + below
        perturbed = own - shifted.clamp(min=0) - torch.log1p((-shifted.abs()).exp())
    there = (log_probs > -torch.inf) & (beam.tokens >= 0)[..., None]
    perturbed = perturbed.where(there, -torch.inf)
    size = log_q.shape[-1]
    best = perturbed.flatten(-2).topk(min(width, log_q.shape[-2] * size))
    return Beam(
        (best.indices % size).where(best.values > -torch.inf, -1),
        best.indices // size,
        log_probs.flatten(-2).gather(-1, best.indices),
        best.values,
    )


def recursive_rejection(
    p: Tensor, q: Tensor, siblings: Tensor, coins: Tensor
) -> tuple[Tensor, Tensor]:
    """Try siblings in the order in which they were drawn without replacement (RSD, algorithm 1).

    Sibling x is accepted if ``coin * q(x) < p(x)``. Otherwise p becomes the residual of both, and
    q loses x: the next sibling was drawn from that.

    Args:
        p, q: ``[..., V]``, float64, the target's and the drafter's.
        siblings: ``[..., K]`` int64, -1 for none.
        coins: ``[..., K]`` in [0, 1).

    Returns:
        Which sibling is accepted, ``[...]``, -1 for none, and the distribution ``[..., V]`` that
        the token is drawn from then.

    Example:
        >>> p, q = torch.tensor([0.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double()
        >>> recursive_rejection(p, q, torch.tensor([0, 1]), torch.tensor([0.3, 0.9]))[0]
        tensor(1)
    """
    accepted = siblings.new_full(siblings.shape[:-1], -1)
    for k, (x, coin) in enumerate(zip(siblings.unbind(-1), coins.unbind(-1), strict=True)):
        at, tried = x.clamp(min=0)[..., None], (x >= 0) & (accepted < 0)
        accepts = tried & (coin * q.gather(-1, at)[..., 0] < p.gather(-1, at)[..., 0])
        accepted = accepted.masked_fill(accepts, k)
        rejected = (tried & ~accepts)[..., None]
        p = residual(p, q).where(rejected, p)
        without = q.scatter(-1, at, 0.0)
        q = (without / without.sum(-1, keepdim=True)).where(rejected, q)
    return accepted, p


def verify_rsd(
    p: Tensor, q: Tensor, tokens: Tensor, parents: Tensor, rows: Tensor, uniforms: Tensor
) -> tuple[Tensor, Tensor]:
    """From the root down a tree, by recursive rejection at each node.

    Args:
        p: ``[B, N + 1, V]``, float64, the target's at the root and behind each node.
        q: ``[B, R, V]``, float64, what siblings were drawn from.
        tokens: ``[B, N]`` int64, N at least 1, siblings in the order in which they were drawn; -1:
            no node.
        parents: ``[B, N]`` int64, earlier nodes, -1 for the root.
        rows: ``[B, N]`` int64, the row of q that each node was drawn from.
        uniforms: ``[B, D + 1, N + 1]`` in [0, 1), D the most nodes that are accepted: at each depth
            one for the token that is drawn where no sibling is accepted, then one for each sibling.

    Returns:
        The tokens that are put out, ``[B, D + 1]``, and the accepted nodes, ``[B, D]``; then -1.
        A token is -1, too, where p is NaN.
    """
    batch, last = torch.arange(len(p), device=p.device), uniforms.shape[1] - 1
    node = torch.full_like(batch, -1)
    goes_on = torch.ones_like(batch, dtype=torch.bool)
    put, path = [], []
    for depth, u in enumerate(uniforms.unbind(1)):
        children = (parents == node[:, None]) & (tokens >= 0) & (depth < last)
        order = children.int().argsort(dim=1, descending=True, stable=True)
        order = order[:, : max(int(children.sum(1).max()), 1)]
        siblings = tokens.where(children, -1).gather(1, order)
        row = rows.gather(1, order[:, :1])[:, 0].clamp(min=0)
        coins = u[:, 1 : order.shape[1] + 1]
        accepted, left = recursive_rejection(p[batch, node + 1], q[batch, row], siblings, coins)
        sums = left.cumsum(1)
        drawn = (sums > u[:, :1] * sums[:, -1:]).int().argmax(1)
        drawn = drawn.where(sums[:, -1] > 0, -1)  # NaN: no distribution
        there, place = accepted >= 0, accepted.clamp(min=0)[:, None]
        put.append(siblings.gather(1, place)[:, 0].where(there, drawn).where(goes_on, -1))
        goes_on = goes_on & there
        node = order.gather(1, place)[:, 0].where(goes_on, node)
        path.append(node.where(goes_on, -1))
    return torch.stack(put, 1), torch.stack(path, 1)[:, :-1]
