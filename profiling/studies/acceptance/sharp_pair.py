"""A second, sharper pair of models: the demo's two, mixed with n-grams and with their contexts.

    target'  = 0.25 target  + 0.2 trigrams + 0.55 cache, which matches up to two tokens
    drafter' = 0.25 drafter + 0.2 bigrams  + 0.55 cache, which matches one

No training: the n-grams are counted on the text that the models were trained on, never on held-out
files. The shares are chosen so that on held-out text the whole drafter is accepted about as often
as that of a real pair (0.8), and that the target is as sure of rare tokens as a large model is.

The sharp drafter is a function of the plain one's hidden state and the context. So everything that
records, clusters and calibrates sees the plain drafter's states and head, and `SharpDrafter` makes
the sharp logits of them: kept ones, means for virtual tokens, dynamic ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.calibration.drafter import FullHead, PrunedDrafter
from rdk_cuda.calibration.material import Material, Options
from rdk_cuda.calibration.methods import (
    FULL,
    Method,
    Pruning,
)
from rdk_cuda.calibration.offsets import calibrate_offsets, with_offsets
from rdk_cuda.calibration.recording.reading import Read, Reading
from rdk_cuda.dynamic_tokens import Contexts

from .context_models import ContextCache, NGrams

__all__ = [
    "Mixture",
    "SharpDrafter",
    "SharpPair",
    "SharpPruning",
]

WINDOW, DECAY, TRUST = 256, 0.99, 0.1  # of the caches
TARGET_MATCHES, DRAFTER_MATCHES = 2, 1
TARGET_ORDER, DRAFTER_ORDER = 3, 2
NGRAM_SHARE, CACHE_SHARE = 0.2, 0.55

Probs = Callable[[Tensor], Tensor]
"""From contexts `[n, w]`, -1 in front, to the next token's probabilities, `[n, V]` float32."""


@dataclass(frozen=True)
class Mixture:
    """A model mixed with n-grams and a cache, `(1 - a - b) p + a p_ngram + b p_cache`."""

    ngrams: Probs
    cache: Probs
    ngram_share: float = NGRAM_SHARE
    cache_share: float = CACHE_SHARE

    def log_probs(self, logits: Tensor, contexts: Tensor) -> Tensor:
        """Logarithms of the mixture `[n, V]` float32, from the model's logits behind contexts."""
        probs = logits.float().softmax(-1).mul_(1 - self.ngram_share - self.cache_share)
        probs.add_(self.ngrams(contexts), alpha=self.ngram_share)
        probs.add_(self.cache(contexts), alpha=self.cache_share)
        return probs.log_()


class SharpPair:
    """The sharp pair made from a pair.

    Args:
        read, full_head: the plain pair and its drafter's LM head `[V, d]`.
        documents: token ids to count n-grams on.

    Attributes:
        target, drafter: the mixtures.
    """

    def __init__(self, read: Read, full_head: FullHead, documents: Sequence[Sequence[int]]) -> None:
        self.plain, self.full_head = read, full_head
        self.target = self._mixture(documents, TARGET_ORDER, TARGET_MATCHES)
        self.drafter = self._mixture(documents, DRAFTER_ORDER, DRAFTER_MATCHES)

    def _mixture(self, documents: Sequence[Sequence[int]], order: int, matches: int) -> Mixture:
        size = self.full_head[0].shape[0]
        cache = ContextCache(size, WINDOW, DECAY, matches, TRUST)
        return Mixture(NGrams(documents, size, order).probs, cache.probs)

    @torch.no_grad()
    def read(self, ids: Tensor) -> Reading:
        """A `Read`: log probabilities of the sharp target, and the plain drafter's states."""
        plain = self.plain(ids)
        logits = plain.target_logits.flatten(0, 1)
        sharp = self.target.log_probs(logits, contexts_of(ids))
        return Reading(sharp.view(plain.target_logits.shape), plain.hidden)

    @torch.no_grad()
    def read_logits(self, ids: Tensor) -> Reading:
        """A `Read` whose `hidden` `[B, L, V]` is the sharp drafter's full logits."""
        target, hidden = self.read(ids)
        logits = torch.nn.functional.linear(hidden, *self.full_head)
        sharp = self.drafter.log_probs(logits.flatten(0, 1), contexts_of(ids))
        return Reading(target, sharp.view(target.shape))


def contexts_of(ids: Tensor) -> Tensor:
    """What stands before the prediction at each place of `[B, L]`: `[B L, WINDOW]`, -1 in front."""
    return (
        torch.nn.functional.pad(ids, (WINDOW - 1, 0), value=-1).unfold(1, WINDOW, 1).flatten(0, 1)
    )


def padded(contexts: Contexts) -> Tensor:
    """The last `WINDOW` tokens of each, `[n, WINDOW]`, -1 in front."""
    if isinstance(contexts, Tensor):
        return contexts[:, -WINDOW:]
    last = [list(context[-WINDOW:]) for context in contexts]
    return torch.tensor([[-1] * (WINDOW - len(ids)) + ids for ids in last])


@dataclass(frozen=True, eq=False)
class SharpDrafter(PrunedDrafter):
    """A pruned sharp drafter, which sees the plain one's hidden states and full head.

    Its columns are the kept ones of the sharp logits, and for a virtual token the mean of its
    members' logits, so virtual rows are always those of the affinity.

    Attributes:
        weight: `[V_d, d]`; what its virtual rows make of a hidden state is added to the means of
            their members' logits, so that they can be refined. The other rows are not used.
        mixture: what is mixed with the plain drafter, `SharpPair.drafter`.
    """

    mixture: Mixture = field(kw_only=True)

    def columns(self, full_head: FullHead, hidden: Tensor, contexts: Contexts) -> dict[str, Tensor]:
        """As of a `PrunedDrafter`, from the plain drafter's states `[n, d]` and head."""
        plain = torch.nn.functional.linear(hidden, *full_head)
        logits = self.mixture.log_probs(plain, padded(contexts))
        kept = self.vocabulary.draft_ids
        virtual = self.affinity.expectation(logits.T, first_row=len(kept)).T.to(logits.dtype)
        virtual = virtual + torch.nn.functional.linear(hidden, self.weight[len(kept) :])
        columns = {"draft_logits": torch.cat([logits[:, kept], virtual], dim=1)}
        if self.dynamic_tokens is not None:
            tokens = self.dynamic_tokens(contexts)
            dynamic = logits.gather(1, tokens.long().clamp_min(0))
            columns["dynamic_tokens"] = tokens
            columns["dynamic_logits"] = dynamic.masked_fill(tokens < 0, -torch.inf)
        return columns


class SharpPruning(Pruning):
    """The methods that need no head of the sharp drafter's own, as it has none.

    These are: pruned, dynamic, virtual, and virtual with dynamic.

    Args:
        mixture: `SharpPair.drafter`.
        material: recorded with `SharpPair.read`; its full head is the plain drafter's.
        vocabulary, options: as of a `Pruning`.
    """

    def __init__(
        self,
        mixture: Mixture,
        material: Material,
        vocabulary: Vocabulary,
        options: Options | None = None,
    ) -> None:
        super().__init__(material, vocabulary, options)
        self.mixture = mixture

    def full(self) -> Method:
        """The sharp drafter as it is."""
        everything = Vocabulary.identity(self.vocabulary.target_size)
        return Method(FULL, 1.0, self.drafter(everything, Affinity.intersection(everything)))

    def drafter(self, vocabulary: Vocabulary, affinity: Affinity) -> SharpDrafter:
        """One that drafts with an affinity."""
        weight = torch.zeros(affinity.draft_size, self.full_head[0].shape[1])
        return SharpDrafter(vocabulary, affinity, weight, mixture=self.mixture)

    @cached_property
    def plain(self) -> PrunedDrafter:
        """No redistribution."""
        return self.drafter(self.vocabulary, Affinity.intersection(self.vocabulary))

    def virtual(self, temperature: float, *, dynamic: bool) -> PrunedDrafter:
        """Virtual tokens with calibrated offsets."""
        if not self.vocabulary.pruned.numel():
            return self.plain
        affinity = Affinity.virtual_tokens(
            self.vocabulary, self.clusters, self.mean_probs(temperature)
        )
        tokens = self.dynamic_tokens if dynamic else None
        drafter = replace(self.drafter(self.vocabulary, affinity), dynamic_tokens=tokens)
        samples = self.material.recording.samples
        offsets = calibrate_offsets(samples, drafter, self.full_head, temperature)
        return with_offsets(drafter, offsets)
