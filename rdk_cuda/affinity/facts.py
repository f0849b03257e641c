"""What an affinity does to a token: its rows, and the rows that reach a target token."""

from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from ..vocabulary import Vocabulary
from .affinity import Affinity
from .fixed_point import ONE


@dataclass(frozen=True)
class Row:
    """What a drafter token drafts.

    Attributes:
        draft: the drafter token.
        bias: `-inf` if it is masked.
        targets: int64, the target tokens that it reaches, the likeliest first, the lowest id
            first among equals.
        masses: float64, what share of its mass goes to each.
        by_prior: `[R]` float64, what share goes through each prior.
    """

    draft: int
    bias: float
    targets: Tensor
    masses: Tensor
    by_prior: Tensor

    @property
    def entropy(self) -> float:
        """Of its masses, in nats: a virtual token's bias without its offset."""
        return float(torch.special.entr(self.masses).sum())

    @property
    def offset(self) -> float:
        """What its bias has beyond the entropy."""
        return self.bias - self.entropy

    def place_of(self, token: int) -> int | None:
        """How many target tokens are likelier than this one, or None if it is not reached."""
        places = (self.targets == token).nonzero()
        return int(places[0]) if places.numel() else None


@dataclass(frozen=True)
class Drafters:
    """The drafter tokens that reach a target token.

    Attributes:
        drafts: int64, the lowest first among equals.
        masses: float64, what share of its mass each gives to the target token.
        by_prior: float64, how much of that goes through priors.
    """

    drafts: Tensor
    masses: Tensor
    by_prior: Tensor

    def select(self, index: Tensor) -> "Drafters":
        """Those at `index`, integers or a mask."""
        return Drafters(self.drafts[index], self.masses[index], self.by_prior[index])


class Facts:
    """An affinity, asked about its rows and its target tokens.

    Args:
        affinity: on the CPU.
        vocabulary: the drafter's kept tokens, which come before its virtual ones. None if unknown:
            a row with one entry then counts as the row of a kept token.
    """

    def __init__(self, affinity: Affinity, vocabulary: Vocabulary | None = None) -> None:
        self.affinity, self.vocabulary = affinity, vocabulary

    @cached_property
    def masked(self) -> Tensor:
        """`[V_d]` bool: drafter tokens that never draft."""
        return self.affinity.bias == -torch.inf

    @cached_property
    def entries(self) -> Tensor:
        """`[V_d]` int64: how many target tokens each drafter token has in S."""
        return self.affinity.row_offsets.long().diff()

    @cached_property
    def own(self) -> Tensor:
        """`[V_d]` int64: the target token that a drafter token stands for, -1 for a virtual one."""
        own = torch.full((self.affinity.draft_size,), -1, dtype=torch.int64, device="cpu")
        if self.vocabulary is not None:
            own[: self.vocabulary.draft_size] = self.vocabulary.draft_ids
        else:
            single = self.entries == 1
            first = self.affinity.row_offsets[:-1][single].long()
            own[single] = self.affinity.row_targets[first].long()
        return own

    @cached_property
    def virtual(self) -> Tensor:
        """`[V_d]` bool: drafter tokens that draft, but have no target token of their own."""
        return ~self.masked & (self.own < 0)

    @cached_property
    def ways(self) -> dict[str, Tensor]:
        """How each target token is drafted at best, as `[V_t]` bool for each way."""
        affinity = self.affinity
        rows = torch.arange(affinity.draft_size, device="cpu").repeat_interleave(self.entries)
        targets = affinity.row_targets.long()
        of_own = torch.zeros(affinity.target_size, dtype=torch.bool, device="cpu")
        of_own[targets[self.own[rows] == targets]] = True
        shared = torch.zeros_like(of_own)
        shared[targets] = True
        used = (affinity.spread > 0).any(0)
        by_prior = (affinity.prior[used] > 0).any(0)
        return {
            "own": of_own,
            "shared": shared & ~of_own,
            "prior": by_prior & ~shared,
            "never": ~(shared | by_prior),
        }

    @property
    def bytes(self) -> int:
        """What all the tensors of the affinity take."""
        values = [getattr(self.affinity, field.name) for field in fields(self.affinity)]
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    def row(self, draft: int) -> Row:
        """What one drafter token drafts."""
        affinity = self.affinity
        part = slice(*affinity.row_offsets[draft : draft + 2].tolist())
        units = affinity.row_cdf[part].diff(prepend=torch.zeros(1, dtype=torch.int64, device="cpu"))
        by_prior = affinity.spread[draft].double()
        masses = by_prior @ affinity.prior.double()
        masses[affinity.row_targets[part].long()] += units.double() / ONE
        order = masses.sort(descending=True, stable=True)
        reached = int((masses > 0).sum())
        bias = float(affinity.bias[draft])
        return Row(draft, bias, order.indices[:reached], order.values[:reached], by_prior)

    def drafters_of(self, token: int) -> Drafters:
        """The drafter tokens that reach a target token, those that give it most first."""
        affinity = self.affinity
        by_prior = affinity.spread.double() @ affinity.prior[:, token].double()
        part = slice(*affinity.col_offsets[token : token + 2].tolist())
        masses = by_prior.clone()
        masses[affinity.col_drafts[part].long()] += affinity.col_weights[part].double()
        order = masses.sort(descending=True, stable=True)
        drafts = order.indices[: int((masses > 0).sum())]
        return Drafters(drafts, masses[drafts], by_prior[drafts])

    def largest_virtual(self, count: int) -> list[Row]:
        """The virtual tokens that reach most target tokens, the lowest first among equals."""
        supports = (self.affinity.prior > 0).sum(1)
        reach = self.entries + ((self.affinity.spread > 0) * supports).sum(1)
        reach = torch.where(self.virtual, reach, -1)
        order = reach.sort(descending=True, stable=True).indices[:count]
        return [self.row(draft) for draft in order[reach[order] > 0].tolist()]
