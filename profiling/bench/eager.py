"""The operators' work in plain PyTorch, as one writes it without them, to compare with.

Padded batches `[B, K, ...]`, float32, draft distributions over the whole target vocabulary.
Every function is a few lines, and none contains what torch.compile cannot take.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from rdk_cuda import Affinity


class Entries(NamedTuple):
    """An affinity `A = S + U P` as index tensors.

    Attributes:
        bias: `[V_d]`. drafts, targets, weights: `[nnz]`, the entries of S by ascending target.
        spread, prior: U `[V_d, R]` and P `[R, V_t]`.
    """

    bias: Tensor
    drafts: Tensor
    targets: Tensor
    weights: Tensor
    spread: Tensor
    prior: Tensor

    @classmethod
    def of(cls, affinity: Affinity) -> Entries:
        """The entries of an affinity, on its device."""
        targets = torch.arange(affinity.target_size, device=affinity.device)
        return cls(
            affinity.bias,
            affinity.col_drafts.long(),
            targets.repeat_interleave(affinity.col_offsets.diff()),
            affinity.col_weights,
            affinity.spread,
            affinity.prior,
        )

    def matrix(self) -> Tensor:
        """S transposed, `[V_t, V_d]` in compressed rows, for a sparse product."""
        counts = torch.bincount(self.targets, minlength=self.prior.shape[1])
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        size = (self.prior.shape[1], self.bias.shape[0])
        with warnings.catch_warnings():  # that it is a beta
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_csr_tensor(
                offsets, self.drafts, self.weights, size, check_invariants=True
            )


def redistribute(
    draft_logits: Tensor,
    temperature: Tensor,
    entries: Entries,
    matrix: Tensor | None = None,
) -> Tensor:
    """Softmax, then every entry of S scattered: q `[n, V_t]` of draft logits `[n, V_d]`.

    With `matrix` (see `Entries.matrix`) S is applied as a sparse product instead.
    """
    probs = torch.softmax(draft_logits.float() / temperature[:, None] + entries.bias, dim=1)
    if matrix is not None:
        q = (matrix @ probs.T).T.contiguous()
    else:
        q = probs.new_zeros(probs.shape[0], entries.prior.shape[1])
        targets = entries.targets.expand(probs.shape[0], -1)
        q.scatter_add_(1, targets, probs[:, entries.drafts] * entries.weights)
    if entries.prior.shape[0] > 0:
        q = q + probs @ entries.spread @ entries.prior
    return q


def draft(
    draft_logits: Tensor,
    temperature: Tensor,
    entries: Entries,
    matrix: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Drafted tokens `[n]`, and q `[n, V_t]`, which the verification needs."""
    q = redistribute(draft_logits, temperature, entries, matrix)
    return torch.multinomial(q, 1).squeeze(1), q


def verify(
    target_logits: Tensor, q: Tensor, draft_token_ids: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Speculative sampling (arXiv:2211.17192, algorithm 1) of a padded batch.

    Args:
        target_logits: `[B, K + 1, V_t]`.
        q: `[B, K, V_t]`, what the drafts were drawn from.
        draft_token_ids: `[B, K]`.
        temperature: `[B]`, the target's.

    Returns:
        Tokens `[B, K + 1]`: the accepted ones, then one drawn token, then -1; and the number of
        accepted ones `[B]`.
    """
    batch, length, vocabulary = q.shape
    p = torch.softmax(target_logits.float() / temperature[:, None, None], dim=2)
    drafted = draft_token_ids.unsqueeze(2)
    coins = torch.rand(batch, length, device=q.device)
    accepted = coins * q.gather(2, drafted).squeeze(2) < p[:, :length].gather(2, drafted).squeeze(2)
    num_accepted = accepted.long().cumprod(1).sum(1)

    at = num_accepted[:, None, None].expand(-1, 1, vocabulary)
    p_stop = p.gather(1, at).squeeze(1)
    q_stop = q.gather(1, at.clamp(max=length - 1)).squeeze(1)
    q_stop = q_stop * (num_accepted < length)[:, None]  # a bonus token is drawn from p
    residual = torch.relu(p_stop - q_stop)
    mass = residual.sum(1, keepdim=True)
    drawn = torch.multinomial(torch.where(mass > 0, residual / mass, p_stop), 1)

    place = torch.arange(length + 1, device=q.device)
    tokens = torch.cat([draft_token_ids, drawn], dim=1)
    tokens = torch.where(place < num_accepted[:, None], tokens, -1)
    return tokens.scatter(1, num_accepted[:, None], drawn), num_accepted


def redistribute_and_verify(
    target_logits: Tensor,
    draft_logits: Tensor,
    draft_token_ids: Tensor,
    temperature: Tensor,
    entries: Entries,
    matrix: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """What `rdk::verify` does: from the drafter's own logits `[K, B, V_d]`."""
    length, batch = draft_logits.shape[:2]
    q = redistribute(draft_logits.flatten(0, 1), temperature.repeat(length), entries, matrix)
    q = q.unflatten(0, (length, batch)).transpose(0, 1)
    return verify(target_logits, q, draft_token_ids, temperature)


def draft_and_verify(
    target_logits: Tensor,
    draft_logits: Tensor,
    temperature: Tensor,
    entries: Entries,
    matrix: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The sampling of one decoding step: K drafts one after the other, q kept for `verify`."""
    drafts = [draft(logits, temperature, entries, matrix) for logits in draft_logits]
    tokens, q = torch.stack([x for x, _ in drafts], 1), torch.stack([q for _, q in drafts], 1)
    return verify(target_logits, q, tokens, temperature)


def gather_logits(hidden: Tensor, weight: Tensor, tokens: Tensor) -> Tensor:
    """`weight[tokens] . hidden`: `[B, C]` of hidden `[B, d]`, head `[V, d]`, tokens `[B, C]`."""
    return torch.einsum("bcd,bd->bc", weight[tokens], hidden)


def overlap(
    target_logits: Tensor, draft_logits: Tensor, temperature: Tensor, entries: Entries
) -> Tensor:
    """The sum of `sum_x min(p, q)` over rows, which autograd takes the gradient of."""
    p = torch.softmax(target_logits.float() / temperature[:, None], dim=1)
    return torch.minimum(p, redistribute(draft_logits, temperature, entries)).sum()
