"""A block drafter in `rdk_cuda.decoding.SpeculativeDecoder` and `Generate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...decoding import Output
from ...dynamic_tokens import TokenHead
from ..eagle3.drafter import cache_for
from ..huggingface.model import checked_head, head_logits
from .network import BlockNetwork


class BlockDrafter:
    """Drafts all places in one pass, as `rdk_cuda.decoding.StateDrafter`; chains alone.

    The first `feed` of a step runs the network over [newest token, masks]; the further ones give
    the next places' rows, with the token before them where there is a Markov head. So a place's q
    depends on no draft, or on those before it, and is lossless like any chain's.

    Args:
        network: from `read_block_drafter`.
        head: `[V_d, d]` or `[V_d, d + r]`, in place of the network's own, for example pruned.
        head_bias: `[V_d]`, its bias if it has one.

    Attributes:
        vocabulary_size: V_d.
        full_head: of all target tokens, if the network's head has them; with a Markov head a matrix
            of both.
        lengths, observed, context, state_layers: as in `Eagle3Drafter`.
        block: `[B, places, d]`, the states of this step's drafts; None before there are any.
        places: the most tokens that it drafts in a step.
    """

    context = math.inf

    def __init__(
        self, network: BlockNetwork, *, head: Tensor | None = None, head_bias: Tensor | None = None
    ) -> None:
        own = network.head
        head = own if head is None else head
        self._head = checked_head("BlockDrafter", head, head_bias, own)
        whole = network.vocabulary.draft_size == network.vocabulary.target_size
        self.full_head: TokenHead | None = (own, None) if whole else None
        self.network, self.vocabulary_size = network, len(head)
        self.state_layers, self.places = network.config.state_layers, network.config.places
        self.device, self.dtype = own.device, own.dtype
        self._cache = cache_for(network, self.dtype, self.device)
        self.reset(0)

    @property
    def observed(self) -> list[int]:
        """How many tokens of each sequence it has the target's states of."""
        return [n + len(new) for n, new in zip(self._cache.lengths, self._new, strict=True)]

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        self._cache.reset(batch_size)
        self.lengths = [0] * batch_size
        width = self.network.fc.in_features
        none = torch.zeros(0, width, dtype=self.dtype, device=self.device)
        self._new = [none] * batch_size  # states that the cache does not have yet
        self.block: Tensor | None = None

    def observe(self, states: Sequence[Tensor]) -> None:
        """Take the target's states of the next n tokens of each sequence."""
        pairs = zip(self._new, states, strict=True)
        self._new = [torch.cat([old, new.to(old)]) for old, new in pairs]
        self.block = None

    @torch.no_grad()
    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `CausalModel.feed`, for one place of each sequence that keeps a row."""
        self.lengths = [n + len(new) for n, new in zip(self.lengths, tokens, strict=True)]
        last = [new[-1] if new else 0 for new in tokens]
        before = torch.tensor(last, dtype=torch.int64, device=self.device)
        rows = zip(self.lengths, self.observed, keep, strict=True)
        places = [n - seen - 1 if kept else 0 for n, seen, kept in rows]
        if self.block is None and any(places):
            places = [-1]
        if max(keep) > 1 or not 0 <= min(places) <= max(places) < self.network.config.places:
            raise ValueError(
                f"BlockDrafter.feed: {self.lengths} tokens are fed, the states of {self.observed} "
                f"are known, and a pass drafts {self.network.config.places}; needs observe() of "
                "all tokens but the newest, then drafts one by one, no more than that"
            )
        if self.block is None:
            self.block = self._drafted(before)
        at = torch.tensor(places, dtype=torch.int64, device=self.device)
        hidden = self.block[torch.arange(len(at), device=self.device), at]
        read = self.network.with_previous(hidden, before)[:, None]
        return Output(head_logits(read, self._head), read)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is."""
        self.lengths = list(map(min, self.lengths, lengths))
        cached = self._cache.lengths
        more = [max(n - old, 0) for n, old in zip(lengths, cached, strict=True)]
        self._new = [new[:n] for new, n in zip(self._new, more, strict=True)]
        self._cache.rollback(lengths)
        self.block = None

    def _drafted(self, newest: Tensor) -> Tensor:
        """A pass; of its keys those of the target's states stay."""
        config, counts = self.network.config, list(map(len, self._new))
        batch, width = len(counts), max(counts, default=0)
        columns = torch.arange(width, device="cpu")
        real = columns < torch.tensor(counts, dtype=torch.int64, device="cpu")[:, None]
        dtype, device = self.dtype, self.device
        states = torch.zeros(batch, width, self.network.fc.in_features, dtype=dtype, device=device)
        states[real.to(self.device)] = torch.cat(self._new)
        self._new = [new[:0] for new in self._new]
        positions = self._cache.append_read(real)
        seen = torch.from_numpy(self._cache.alive).to(self.device)
        size = batch, 1, config.block, seen.shape[1] + config.block
        mask = torch.zeros(size, dtype=dtype, device=device)
        least = torch.finfo(self.dtype).min
        mask[..., : seen.shape[1]].masked_fill_(~seen[:, None, None], least)
        block = torch.arange(config.block, device=self.device)
        first = torch.tensor(self._cache.lengths, dtype=torch.int64, device=self.device)
        where = torch.cat([positions, first[:, None] + block], dim=1)
        tokens = torch.full((batch, config.block), config.mask, dtype=torch.int64, device=device)
        tokens[:, 0] = newest
        hidden: Tensor = self.network(tokens, states, where, mask, self._cache.past)
        for layer in self._cache.past.layers:
            layer.keep(seen.shape[1])
        return hidden
