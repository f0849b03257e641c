"""How long a draft gets: whether a sequence drafts on, from what it drafted so far.

A rule may look at anything that was drafted, because what it has seen stays: it ends a draft behind
a token. It may not take a token back because of the token's own q (DESIGN section 5), nor look at
other sequences. So a rule is a function of `Drafted` and returns `[B]` bools, each of its own row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from .. import functional, moved
from .._ops.contract import LIMITS
from ..affinity import Affinity
from ..functional import Draft

if not TYPE_CHECKING:
    __getattr__ = partial(moved.attribute, __name__)

FEATURES = 5  # of a place, as `Drafted.features` has them
_LEAST_LOG = -20.0  # of a probability that a classifier reads
_OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}  # of greedy drafts nothing is cut


class Drafted:
    """The k places that a step has drafted so far. For greedy drafts, q is that of temperature 1.

    Args:
        affinity: the one that is drafted with.

    Attributes:
        places: each place's draft, with its logits.
    """

    def __init__(self, affinity: Affinity) -> None:
        self.affinity = affinity
        self.places: list[Draft] = []
        self._rows: list[_Place] = []

    @property
    def probs(self) -> Tensor:
        """`[B, k]`: q of each drawn token; 0 where none was drawn."""
        return torch.stack([row.prob for row in self._read()], 1)

    @property
    def entropies(self) -> Tensor:
        """`[B, k]`: the entropy, in nats, of each row of drafter columns that was drawn from."""
        return torch.stack([row.entropy for row in self._read()], 1)

    @property
    def features(self) -> Tensor:
        """`[B, k, 5]`: what a `Classifier` weighs of each place.

        The logarithms of the drawn token's q and of the two largest probabilities of the row of
        drafter columns that it was drawn from, that row's entropy, and 1.
        """
        return torch.stack([row.features for row in self._read()], 1)

    def _read(self) -> list[_Place]:
        new = self.places[len(self._rows) :]
        self._rows += [_Place(draft, self.affinity) for draft in new]
        return self._rows


Length = Callable[[Drafted], Tensor]
"""Says which sequences draft on behind the newest place, `[B]` bools."""


@dataclass(frozen=True)
class Product:
    """While the product of the drawn tokens' q is at least this: how likely all are accepted."""

    at_least: float

    def __call__(self, drafted: Drafted) -> Tensor:
        return drafted.probs.prod(1) >= self.at_least


@dataclass(frozen=True)
class Classifier:
    """While the drafted tokens are all accepted with at least this probability, as is predicted.

    A logistic model of each place, as DISCO's (arXiv:2405.04304). A token's place in the draft
    counts through the product: a recording, which it is trained on, has no drafts.

    Attributes:
        weights: of `Drafted.features`; `rdk_cuda.calibration.calibrate_length` finds them.
        at_least: the probability.
    """

    weights: tuple[float, ...]
    at_least: float

    def __call__(self, drafted: Drafted) -> Tensor:
        return self.accepted(drafted.features).prod(1) >= self.at_least

    def accepted(self, features: Tensor) -> Tensor:
        """Predict the probability of each place, `[..., 5]` to `[...]`."""
        parts = zip(self.weights, features.unbind(-1), strict=True)
        logits = row_sums(torch.stack([weight * part for weight, part in parts], -1))
        # Not `sigmoid`: torch's has other bits in the last elements of a tensor than before them.
        return 1 / (1 + (-logits).exp())


def row_sums(terms: Tensor) -> Tensor:
    """Add up the last dimension, to the same bits whatever rows stand beside a row.

    Zeros behind it, which fill it up to the longest of a batch, change no bit either. `sum` adds in
    an order that goes by the shape, and on CUDA by where in memory a row begins; here neighbours
    are added, and then the sums of neighbours.
    """
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = torch.nn.functional.pad(terms, (0, 1))
        terms = terms[..., ::2] + terms[..., 1::2]
    return terms.sum(-1)


_RULES = (Product, Classifier)


def described(length: Length) -> dict[str, Any]:
    """Describe one of these rules as JSON, for `length_of`."""
    if not isinstance(length, _RULES):
        raise ValueError(f"described: length is {length!r}; needs a rule of {__name__}")
    return {"rule": type(length).__name__, **asdict(length)}


def length_of(description: dict[str, Any]) -> Length:
    """Make the rule that was described.

    Raises:
        ValueError: what describes no rule.
    """
    rules = {rule.__name__: rule for rule in _RULES}
    try:
        given = dict(description)
        rule = rules[given.pop("rule")]
        weights = given.pop("weights", None)
        numbers: dict[str, Any] = {name: float(value) for name, value in given.items()}
        if weights is not None:
            numbers["weights"] = tuple(map(float, weights))
        flat = [*given.values(), *(weights or [])]
        if not all(map(math.isfinite, flat)) or len(weights or range(FEATURES)) != FEATURES:
            raise ValueError(f"needs finite numbers, and {FEATURES} weights")
        length: Length = rule(**numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"length is {str(description)[:200]} ({error}); needs what `described` makes of a rule"
        ) from error
    return length


class _Place:
    """A row of drafter columns for each sequence, with the softmax that it was drawn from.

    Sums are `row_sums`, since a sequence that is at a threshold must do alone what it does in a
    batch.
    """

    def __init__(self, draft: Draft, affinity: Affinity) -> None:
        self.draft, self.affinity = draft, affinity
        self.greedy = draft.temperature == 0
        self.temperature = draft.temperature.masked_fill(self.greedy, 1.0)

    @cached_property
    def prob(self) -> Tensor:
        """`[B]`: q of each drawn token; 0 where none was drawn."""
        draft, token = self.draft, self.draft.tokens
        limits = dict(zip(LIMITS, draft.limits, strict=True))
        cut: dict[str, Any] = {
            name: limit.masked_fill(self.greedy, _OFF[name])
            for name, limit in limits.items()
            if limit is not None
        }
        cut |= {"dynamic_tokens": draft.dynamic_tokens, "dynamic_logits": draft.dynamic_logits}
        logits = cast(Tensor, draft.logits).detach()
        q = functional.redistribute(logits, self.affinity, self.temperature, **cut)[:, 0]
        return q.gather(1, token.clamp(min=0))[:, 0].where(token[:, 0] >= 0, 0.0)

    @cached_property
    def entropy(self) -> Tensor:
        """`[B]`."""
        return -row_sums((self._logs.exp() * self._logs).where(self._logs > -torch.inf, 0.0))

    @cached_property
    def features(self) -> Tensor:
        """`[B, 5]`, as `Drafted.features`; a second column that there is not has probability 0."""
        largest = torch.nn.functional.pad(self._logs.exp(), (0, 1)).topk(2).values
        logs = torch.cat([self.prob[:, None], largest], 1).log().clamp(min=_LEAST_LOG)
        entropy = self.entropy[:, None]
        return torch.cat([logs, entropy, torch.ones_like(entropy)], 1)

    @cached_property
    def _logs(self) -> Tensor:
        """`[B, V_d + C]`, the logarithms of the columns' probabilities."""
        draft, bias = self.draft, self.affinity.by_target[0]
        z = cast(Tensor, draft.logits)[:, 0].float() / self.temperature[:, None]
        z = z if bias is None else z + bias
        if draft.dynamic_tokens is not None and draft.dynamic_logits is not None:
            tokens = draft.dynamic_tokens[:, 0]
            own = draft.dynamic_logits[:, 0].float() / self.temperature[:, None]
            used = (tokens >= 0) & (tokens < self.affinity.target_size)
            z = torch.cat([z, own.where(used, -torch.inf)], 1)
        threshold = cast(Tensor, draft.stats)[:, 0, 2 + self.affinity.rank :]
        if threshold.shape[1]:  # of greedy drafts nothing is cut
            z = z.masked_fill((z < threshold) & ~self.greedy[:, None], -torch.inf)
        z = z - z.amax(1, keepdim=True)
        return z - row_sums(z.exp()).log()[:, None]
