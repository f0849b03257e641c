"""An EAGLE-3 or EAGLE-2 network in `rdk_cuda.decoding.SpeculativeDecoder`.

Entry i of the network's cache is made of token i + 1 and state i, so a sequence of n tokens has
n - 1 entries. A state is the target's where it is known. After those, along a draft, it is what the
network returned for the entry before. When the target has read the drafts, their entries are made
again from its states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ...decoding import Output
from ...decoding.models import Ragged
from ...dynamic_tokens import TokenHead
from ..huggingface.attention import layers_of
from ..huggingface.model import checked_head, head_logits
from ..huggingface.slot_cache import SlotCache, lay_out, pieces
from .network import Eagle3Network


def cache_for(network: Any, dtype: torch.dtype, device: torch.device) -> SlotCache:
    """An empty cache for the layers of a network."""
    layer = network.config.layer
    return SlotCache(layer, layers_of(SimpleNamespace(config=layer)), dtype, device)


class Eagle3Drafter:
    """A drafter that reads the target's hidden states, as `rdk_cuda.decoding.StateDrafter`.

    Args:
        network: from `read_checkpoint`.
        target_layers: how many the target has, to know which ones the network reads.
        head: `[V_d, d]`, a head in place of the network's own, for example with virtual tokens.
        head_bias: `[V_d]`, its bias if it has one.
        full_head: of all target tokens, for dynamic ones, as in `SpeculativeDecoder`.

    Attributes:
        vocabulary_size: V_d.
        full_head: as given; None if it was not.
        state_layers: the target's layers whose inputs it reads; `HuggingFaceModel` takes them.
        observed: how many tokens of each sequence it has the target's states of.
        context: no limit. Drafters are published with the context that they were trained with, and
            draft beyond it, not as well.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from rdk_cuda import Affinity, Vocabulary
        >>> from rdk_cuda.decoding import SpeculativeDecoder
        >>> from rdk_cuda.integrations.eagle3 import Eagle3Config
        >>> from rdk_cuda.integrations.huggingface import HuggingFaceModel
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=8, num_attention_heads=2)
        >>> network = Eagle3Network(Eagle3Config(config, draft_size=20, target_hidden_size=16))
        >>> drafter = Eagle3Drafter(network, target_layers=8)
        >>> target = HuggingFaceModel(
        ...     LlamaForCausalLM(config).eval(), state_layers=drafter.state_layers
        ... )
        >>> affinity = Affinity.intersection(Vocabulary(list(range(20)), target_size=50))
        >>> decoder = SpeculativeDecoder(target, drafter, affinity, draft_length=3)
        >>> decoder.generate([[5, 3], [7]], max_new_tokens=9).statistics.tokens
        18
    """

    context = math.inf

    def __init__(
        self,
        network: Eagle3Network,
        target_layers: int,
        *,
        head: Tensor | None = None,
        head_bias: Tensor | None = None,
        full_head: TokenHead | None = None,
    ) -> None:
        own = network.lm_head.weight.detach()
        head = own if head is None else head
        self._head = checked_head(type(self).__name__, head, head_bias, own)
        self.full_head = full_head
        self.network, self.vocabulary_size = network, len(head)
        self.state_layers = network.config.layers_read(target_layers)
        self.device, self.dtype = own.device, own.dtype
        self._cache = cache_for(network, self.dtype, self.device)
        self.reset(0)

    @property
    def lengths(self) -> list[int]:
        """How many tokens each sequence has been fed and still remembers."""
        return [entries + 1 if entries else 0 for entries in self._cache.lengths]

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        self._cache.reset(batch_size)
        self.observed = [0] * batch_size
        width = self.network.config.layer.hidden_size
        # The target's states, mapped, with room for more; the network's own, for one entry each.
        self._states = torch.empty(batch_size, 0, width, dtype=self.dtype, device=self.device)
        self._own = torch.zeros(batch_size, width, dtype=self.dtype, device=self.device)
        self._own_entry = [-1] * batch_size
        self._nodes = self._own[:, None, :][:, :0]  # what it returned for each node of a tree

    @torch.no_grad()
    def observe(self, states: Sequence[Tensor]) -> None:
        """Take the target's states of the next n tokens of each sequence, as `fuse` reads them."""
        if len(states) != len(self.observed):
            raise ValueError(
                f"Eagle3Drafter.observe: got states of {len(states)} sequences; needs "
                f"{len(self.observed)}, as reset() was told"
            )
        self._cache.rollback(self.observed)  # what follows was made of the network's own states
        counts = [len(new) for new in states]
        ends = [old + new for old, new in zip(self.observed, counts, strict=True)]
        if max(ends, default=0) > (known := self._states.shape[1]):
            more = max(ends) + max(ends) // 2 - known
            self._states = functional.pad(self._states, (0, 0, 0, more))
        mapped = self.network.fuse(torch.cat(list(states)).to(self._own)).split(counts)
        for row, old, end, new in zip(self._states, self.observed, ends, mapped, strict=True):
            row[old:end] = new
        self.observed = ends
        self._own_entry = [-1] * len(ends)

    @torch.no_grad()
    def feed(self, tokens: Ragged, keep: Sequence[int]) -> Output:
        """Append tokens and predict; a sequence's first token has no state before it."""
        entries = self._cache.lengths
        paired = [new[not old :] for new, old in zip(tokens, entries, strict=True)]
        if not any(map(len, paired)) or any(map(int.__gt__, keep, map(len, paired))):
            raise ValueError(
                "Eagle3Drafter.feed: keep is more than the tokens with a state before them"
            )
        ends = [old + len(new) for old, new in zip(entries, paired, strict=True)]
        for b, (old, end) in enumerate(zip(entries, ends, strict=True)):
            unknown = max(old, self.observed[b])
            if end > unknown and not unknown == end - 1 == self._own_entry[b]:
                raise ValueError(
                    f"Eagle3Drafter.feed: sequence {b} gets {end + 1} tokens, but the target's "
                    f"states are known of {self.observed[b]}; observe() all but the newest, then "
                    "feed drafts one by one"
                )
        ids, real = lay_out(paired, keep)
        kept = max(keep)
        for piece in pieces(ids.shape[1], kept):
            hidden = self._forward(ids[:, piece], real[:, piece])
        self._hand_on(hidden, real[:, piece], ends)
        last = self.network.norm(hidden[:, hidden.shape[1] - kept :])
        return Output(head_logits(last, self._head), last)

    @torch.no_grad()
    def feed_tree(self, tokens: Ragged, keep: Sequence[int], parents: Ragged) -> Output:
        """Append as `rdk_cuda.decoding.TreeModel.feed_tree`, level by level.

        Raises:
            ValueError: a token that is no node, or a node whose parent has not been read before.
        """
        known, counts = self._cache.tree_sizes, [len(new) for new in tokens]
        above = [own[size:] for own, size in zip(parents, known, strict=True)]
        if counts != list(keep) or counts != [len(own) for own in above]:
            raise ValueError(
                f"Eagle3Drafter.feed_tree: {counts} tokens are fed, {list(keep)} kept, and "
                f"{[len(own) for own in above]} have parents; needs nodes alone: feed() the others"
            )
        if any(not -1 <= p < size for own, size in zip(above, known, strict=True) for p in own):
            raise ValueError(
                f"Eagle3Drafter.feed_tree: the parents of new nodes are {above}, and {known} nodes "
                "are read; needs each parent to be read before its children"
            )
        ids, real = lay_out(tokens, keep)
        places = torch.zeros_like(ids)
        for row, own in zip(places, above, strict=True):
            row[: len(own)] = torch.tensor(own, dtype=torch.int64, device="cpu") + 1
        before = torch.cat([self._own[:, None], self._nodes], 1)
        wide = places.to(self.device)[:, :, None].expand(-1, -1, before.shape[2])
        positions, mask = self._cache.append(real, parents)
        hidden = self.network(
            ids.to(self.device), before.gather(1, wide), positions, mask, self._cache.past
        )
        self._keep_nodes(hidden, known, counts)
        last = self.network.norm(hidden)
        return Output(head_logits(last, self._head), last)

    def _keep_nodes(self, hidden: Tensor, known: Sequence[int], counts: Sequence[int]) -> None:
        states = self.network.handed_on(hidden)
        more = max(map(sum, zip(known, counts, strict=True))) - self._nodes.shape[1]
        self._nodes = functional.pad(self._nodes, (0, 0, 0, max(more, 0)))
        for b, (old, count) in enumerate(zip(known, counts, strict=True)):
            self._nodes[b, old : old + count] = states[b, :count]

    def keep_paths(self, paths: Ragged) -> None:
        """Forget all nodes: the entries of accepted ones are made again of the target's states."""
        self._cache.keep_paths([[] for _ in paths])
        self._nodes = self._nodes[:, :0]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is."""
        self.observed = [min(old, new) for old, new in zip(self.observed, lengths, strict=True)]
        entries = zip(self._cache.lengths, lengths, strict=True)
        self._cache.rollback([min(old, max(new - 1, 0)) for old, new in entries])
        self._nodes = self._nodes[:, :0]

    def _forward(self, ids: Tensor, real: Tensor) -> Tensor:
        positions, mask = self._cache.append(real)
        assert isinstance(mask, Tensor)
        known = torch.tensor(self.observed, dtype=torch.int64, device=self.device)[:, None]
        place = positions.clamp(max=self._states.shape[1] - 1)[:, :, None]
        states = self._states.gather(1, place.expand(-1, -1, self._own.shape[1]))
        states = states.where((positions < known)[:, :, None], self._own[:, None])
        hidden: Tensor = self.network(
            ids.to(self.device), states, positions, mask, self._cache.past
        )
        return hidden

    def _hand_on(self, hidden: Tensor, real: Tensor, ends: Sequence[int]) -> None:
        if bool(real.all()):
            newest = hidden[:, -1]
            if hidden.shape[1] > 1:  # a view would keep the states of a whole piece alive
                newest = newest.clone()
            self._own, self._own_entry = self.network.handed_on(newest), [*ends]
            return
        rows = real.any(1).nonzero()[:, 0]
        last = real.int().cumsum(1).argmax(1)[rows]
        states = hidden[rows.to(self.device), last.to(self.device)]
        self._own[rows.to(self.device)] = self.network.handed_on(states)
        for b in rows.tolist():
            self._own_entry[b] = ends[b]
