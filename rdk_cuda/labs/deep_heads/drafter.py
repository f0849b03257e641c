"""Multi-token heads of several layers, one for each place of a draft."""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...decoding import Output
from ...integrations.eagle3.drafter import cache_for
from ...integrations.eagle3.weights import tensor_names
from ...integrations.huggingface.model import checked_head, head_logits
from ...integrations.huggingface.slot_cache import lay_out, pieces
from ...integrations.mtp.checkpoint import names_of, read_layer, read_mtp
from ...integrations.mtp.network import MtpNetwork


def read_layers(directory: str | PathLike[str], target: Any) -> list[MtpNetwork]:
    """Read all layers of a multi-token head.

    Args, errors: as `rdk_cuda.integrations.mtp.read_mtp`, which reads the first.
    """
    folder, networks = Path(directory), [read_mtp(directory, target)]
    family, layers = networks[0].family, networks[0].target_layers
    text, names = networks[0].decoder.config, list(map(family.own_name, tensor_names(folder)))
    while not family.blocks:  # whose head is one layer
        begin = names_of(family, layers, text, len(networks))["layer"]
        if not any(name.startswith(begin) for name in names):
            break
        networks.append(read_layer(folder, target, len(networks)))
    return networks


class DeepMtpDrafter:
    """Drafts each place with a layer of its own, as `rdk_cuda.decoding.StateDrafter`.

    Entry i of layer p's cache is made of token i + 1 + p and of what layer p - 1 handed on for its
    entry i; layer 0 reads the target's states. So layer p draws a sequence's place p, and its last
    p entries are made again when drafts have been rejected. It drafts as many places as there are
    layers, in chains.

    Args:
        networks: from `read_layers`, which share one head.
        head, head_bias: as in `MtpDrafter`.

    Attributes:
        places: the most tokens that it drafts in a step.
        lengths, observed, full_head, state_layers, vocabulary_size: as in `MtpDrafter`.
    """

    context = math.inf

    def __init__(
        self,
        networks: Sequence[MtpNetwork],
        *,
        head: Tensor | None = None,
        head_bias: Tensor | None = None,
    ) -> None:
        self.networks, self.places = list(networks), len(networks)
        network = self.networks[0]
        own = network.lm_head.weight
        if any(each.lm_head.weight.data_ptr() != own.data_ptr() for each in self.networks):
            raise ValueError(
                "DeepMtpDrafter: its layers have heads of their own; needs layers that share one, "
                "or MtpDrafter, which drafts with the first"
            )
        self.full_head = own, network.lm_head.bias
        if head is None:
            head, head_bias = self.full_head
        self._head = checked_head("DeepMtpDrafter", head, head_bias, own)
        self.vocabulary_size, self.device, self.dtype = len(head), own.device, own.dtype
        self.state_layers = network.config.layers_read(network.target_layers)
        self._caches = [cache_for(each, self.dtype, self.device) for each in self.networks]
        self.reset(0)

    @property
    def lengths(self) -> list[int]:
        """How many tokens each sequence has been fed and still remembers."""
        return list(map(len, self._tokens))

    @property
    def observed(self) -> list[int]:
        """How many tokens of each sequence it has the target's states of."""
        return list(map(len, self._states[0]))

    def reset(self, batch_size: int) -> None:
        """Forget everything and expect `batch_size` empty sequences."""
        self._tokens: list[list[int]] = [[] for _ in range(batch_size)]
        none = torch.zeros(0, self.full_head[0].shape[1], dtype=self.dtype, device=self.device)
        # The states that each layer reads, of each sequence; nobody reads the last ones.
        self._states = [[none] * batch_size for _ in range(len(self.networks) + 1)]
        for cache in self._caches:
            cache.reset(batch_size)

    def observe(self, states: Sequence[Tensor]) -> None:
        """Take the target's states of the next n tokens of each sequence."""
        self._append(0, states)

    @torch.no_grad()
    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        """As `CausalModel.feed`, for one place of each sequence that keeps a row."""
        for known, new in zip(self._tokens, tokens, strict=True):
            known.extend(new)
        places = [
            n - seen - 1 if kept else -1
            for n, seen, kept in zip(self.lengths, self.observed, keep, strict=True)
        ]
        width = self.full_head[0].shape[1]
        last = torch.zeros(len(tokens), 1, width, dtype=self.dtype, device=self.device)
        for place in sorted(set(places) - {-1}):
            rows = [b for b, own in enumerate(places) if own == place]
            ready = 0 <= place < len(self.networks) and all(
                len(self._states[place][b]) == self.observed[b] for b in rows
            )
            if not ready or max(keep) > 1:
                raise ValueError(
                    f"DeepMtpDrafter.feed: sequences {rows} are at place {place} of a draft, "
                    f"{max(keep)} rows of one are kept, and there are {len(self.networks)} layers; "
                    "needs observe() of all tokens but the newest, then drafts fed one by one, no "
                    "more than layers"
                )
            last[rows] = self._run(place, rows)[rows]
        return Output(head_logits(last, self._head), last)

    def rollback(self, lengths: Sequence[int]) -> None:
        """Forget what sequence b has beyond `lengths[b]` tokens; a shorter one stays as it is."""
        for b, length in enumerate(lengths):
            del self._tokens[b][length:]
            self._states[0][b] = self._states[0][b][:length]
        for place, cache in enumerate(self._caches):
            most = [max(n - 1 - place, 0) for n in lengths]
            own = map(min, cache.lengths, most, self.observed)
            cache.rollback(list(own))
            above = self._states[place + 1]
            above[:] = [states[:n] for states, n in zip(above, cache.lengths, strict=True)]

    def _run(self, place: int, rows: Sequence[int]) -> Tensor:
        """Run a layer over entries that it had not read; returns its head's input `[B, 1, d]`."""
        network, cache = self.networks[place], self._caches[place]
        first, none = cache.lengths, self._states[place][0][:0]
        new: list[list[int]] = [[] for _ in first]
        states = [none] * len(first)
        for b in rows:
            new[b] = self._tokens[b][first[b] + 1 + place : self.observed[b] + 1 + place]
            states[b] = self._states[place][b][first[b] :]
        ids, real = lay_out(new, [int(b in rows) for b in range(len(new))])
        read = torch.zeros(*ids.shape, none.shape[1], dtype=self.dtype, device=self.device)
        own = real.to(self.device)
        read[own] = torch.cat(states)
        hidden = []
        for piece in pieces(ids.shape[1], 1):
            positions, mask = cache.append(real[:, piece])
            assert isinstance(mask, Tensor)
            inputs = ids[:, piece].to(self.device), read[:, piece]
            hidden.append(network(*inputs, positions, mask, cache.past))
        whole = torch.cat(hidden, dim=1)
        self._append(place + 1, network.handed_on(whole)[own].split(list(map(len, new))))
        last: Tensor = network.norm(whole[:, -1:])
        return last

    def _append(self, place: int, states: Sequence[Tensor]) -> None:
        old = self._states[place]
        old[:] = [torch.cat([own, new.to(own)]) for own, new in zip(old, states, strict=True)]
