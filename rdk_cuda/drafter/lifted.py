"""Rows for tokens that a drafter's head never had, from the target's own (DESIGN section 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..functional import gather_logits

_LEAST_PRIOR = 1e-9  # of a token, as a share of the mean one: its logarithm has to be finite
_BLOCK = 1 << 13  # rows that are worked on in float32 at a time


@dataclass(frozen=True, eq=False)
class LiftedRows:
    """A linear map from the target's head rows `h_c` to rows of the drafter's head.

        row_c = M^T h_c + a + log(prior_c) b
        logit_c = row_c . x + o + s log(prior_c)
        row_c . x = h_c . (M x) + a . x + log(prior_c) b . x

    Attributes:
        map: `[d_t + 2, d]` float32: `M^T`, then a, then b.
        log_prior: `[V_t]` float32.
        shift: `[2]` float32: o and s.
        unexplained: share of the drafter's own rows, in the mean square over held-out kept tokens,
            that the map in closed form does not give; 0 is exact.
        refitted: whether the map was fitted to what the target accepts.
    """

    map: Tensor
    log_prior: Tensor
    shift: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float32, device="cpu"))
    unexplained: float = 0.0
    refitted: bool = False

    @classmethod
    def of_the_target(cls, width: int, mean_probs: Tensor) -> LiftedRows:
        """The target's own rows, for a drafter of the same width d whose kept rows these are."""
        same = torch.eye(width + 2, width, dtype=torch.float32, device="cpu")
        return cls(same, log_prior_of(mean_probs))

    @property
    def bias(self) -> Tensor:
        """`[V_t]` float32, what is added to the logits of pruned tokens, whatever the state."""
        return self.shift[0] + self.shift[1] * self.log_prior

    def rows(self, target_head: Tensor) -> Tensor:
        """Lift the target's head `[V_t, d_t]` to rows `[V_t, d]` float32."""
        parts = zip(target_head.split(_BLOCK), self.log_prior.split(_BLOCK), strict=True)
        return torch.cat([features_of(rows, prior) @ self.map for rows, prior in parts])


class LiftedHead:
    """The logits of lifted rows, from the target's own head in memory: `full_head` of a decoder.

    Args:
        lifted: the map.
        target_head: `[V_t, d_t]`, any floating dtype.

    Example:
        >>> lifted = LiftedRows(torch.eye(4)[:, :2], torch.zeros(3))
        >>> head = LiftedHead(lifted, torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 4.0]]))
        >>> head(torch.tensor([[10.0, 1.0]]), torch.tensor([[2, 0]], dtype=torch.int32))
        tensor([[ 4., 10.]])
    """

    def __init__(self, lifted: LiftedRows, target_head: Tensor) -> None:
        width = target_head.shape[1]
        self._map = lifted.map.to(target_head)
        self._log_prior = lifted.log_prior.to(target_head.device)
        self._bias = lifted.bias.to(target_head.device)
        if self._map.shape[0] != width + 2 or len(self._log_prior) != len(target_head):
            raise ValueError(
                f"LiftedHead: the target's head is {list(target_head.shape)}; needs "
                f"{[len(self._log_prior), self._map.shape[0] - 2]}, as the map was made for"
            )
        self._head, self.size = target_head, len(target_head)

    def __call__(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """`[B, C]` logits of tokens `[B, C]` int32, -1 for none, at hidden states `[B, d]`."""
        mapped = torch.nn.functional.linear(hidden.to(self._map), self._map)
        width = self._head.shape[1]
        logits = gather_logits(mapped[:, :width].contiguous(), self._head, tokens).float()
        at = tokens.long().clamp(0, self.size - 1)  # what is no token has -inf
        logits += mapped[:, width : width + 1] + self._log_prior[at] * mapped[:, width + 1 :]
        return logits.add_(self._bias[at])


def log_prior_of(mean_probs: Tensor) -> Tensor:
    """Return `[V_t]` float32, the logarithm of mean probabilities `[V_t]`, finite."""
    prior = mean_probs.double() / mean_probs.double().sum()
    return prior.clamp_min(_LEAST_PRIOR / len(prior)).log().float()


def features_of(rows: Tensor, log_prior: Tensor) -> Tensor:
    """Return `[n, d_t + 2]` float32, the inputs of the map: head rows, 1 and the log prior."""
    constant = rows.new_ones(len(rows), 1, dtype=torch.float32)
    return torch.cat([rows.float(), constant, log_prior.to(rows.device)[:, None]], dim=1)
