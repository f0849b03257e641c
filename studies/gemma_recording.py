"""What Gemma 3 270M and its drafters say of some texts: hidden states at some positions."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.demo.corpus import docstrings, read_text
from rdk_cuda.integrations.eagle3 import Eagle3Network
from rdk_cuda.integrations.eagle3.unrolled import unrolled

WINDOW, FIRST = 384, 64
CONTEXT, RUN = 40, 8  # tokens that the model sees as a drafter, and positions in one pass
DEPTHS, STRIDE = 3, 5  # places in a draft, and positions from one that is measured to the next
BLOCK = 64  # positions that are worked on at a time


@dataclass
class Recorded:
    """Final hidden states of both models at some positions, documents one after the other.

    Attributes:
        target, drafter: `[documents, positions, d]`.
        contexts: `[documents, positions, 256]`, the tokens up to there, -1 before the first.
    """

    target: Tensor
    drafter: Tensor
    contexts: Tensor

    def some(self, documents: slice, step: int = 1) -> Recorded:
        """Some of the documents, and of their positions."""
        parts = (self.target, self.drafter, self.contexts)
        return Recorded(*(part[documents, ::step] for part in parts))


def metric(at: Recorded) -> Tensor:
    """`E[x x^T]` of a drafter's states."""
    states = at.drafter.flatten(0, 1).double()
    return states.T @ states / len(states)


def tokens_of(files: Iterable[Path], kind: str, tokenizer: Any) -> Iterator[list[int]]:
    """A kind of text, file by file."""
    for file in files:
        text = read_text(file)
        yield tokenizer(docstrings(text) if kind == "prose" else text)["input_ids"]


def windows_of(files: Iterable[Path], kind: str, tokenizer: Any, count: int) -> Tensor:
    """`[n, WINDOW]` tokens: the beginnings of the first `count` files that are so long."""
    long = (each for each in tokens_of(files, kind, tokenizer) if len(each) >= WINDOW)
    return torch.tensor([tokens[:WINDOW] for tokens in islice(long, count)])


def contexts_at(windows: Tensor, positions: Tensor) -> Tensor:
    """`[documents, positions, 256]` tokens up to and with each position."""
    padded = torch.nn.functional.pad(windows, (255, 0), value=-1)
    return padded.unfold(1, 256, 1).gather(1, positions[:, :, None].expand(-1, -1, 256))


@torch.no_grad()
def record_itself(model: Any, windows: Tensor) -> tuple[Tensor, Recorded]:
    """The target's states `[documents, WINDOW, d]`, and both models' at 64 positions of each."""
    target = torch.cat([model.base_model(part).last_hidden_state for part in windows.split(4)])
    generator = torch.Generator().manual_seed(2)
    begins = [torch.randperm((WINDOW - 64) // RUN - 1, generator=generator)[:8] for _ in windows]
    starts = 64 + RUN * torch.stack(begins).sort(1).values
    drafter = []
    for ids, places in zip(windows, starts, strict=True):
        runs = [torch.cat([ids[:1], ids[s - CONTEXT + 1 : s + RUN]]) for s in places.tolist()]
        states = model.base_model(torch.stack(runs)).last_hidden_state
        drafter.append(states[:, -RUN:].flatten(0, 1))
        print(f"{len(drafter)} of {len(windows)} documents", end="\r", file=sys.stderr, flush=True)
    positions = (starts[:, :, None] + torch.arange(RUN)).flatten(1)
    contexts = contexts_at(torch.nn.functional.pad(windows[:, 1:], (1, 0), value=-1), positions)
    chosen = target.gather(1, positions[:, :, None].expand(-1, -1, target.shape[2]))
    return target, Recorded(chosen, torch.stack(drafter), contexts)


@torch.no_grad()
def record_drafter(model: Any, network: Eagle3Network, windows: Tensor) -> Recorded:
    """Final hidden states of the target and of an EAGLE-3 drafter, at the same positions.

    Position j of a window predicts its token j + 1. The drafter has the target's states up to j - 1
    less the place in the draft, and its own after that.
    """
    places = torch.arange(FIRST, WINDOW, STRIDE)
    targets, drafters = [], []
    layers = network.config.layers_read(model.config.get_text_config().num_hidden_layers)
    for part in windows.split(4):
        output = model.base_model(part, output_hidden_states=True, use_cache=False)
        read = torch.cat([output.hidden_states[at] for at in layers], dim=-1)
        targets.append(output.last_hidden_state[:, places])
        own = read.new_zeros(*part.shape, network.config.layer.hidden_size)
        for depth, hidden in enumerate(unrolled(network, part, read, DEPTHS)):
            # Entry i has read the tokens up to i + 1 + depth.
            shifted = torch.nn.functional.pad(network.norm(hidden), (0, 0, 1 + depth, 0))
            at = (torch.arange(WINDOW) - FIRST) // STRIDE % DEPTHS == depth
            own[:, at] = shifted[:, :WINDOW][:, at]
        drafters.append(own[:, places])
    contexts = contexts_at(windows, places.expand(len(windows), -1))
    return Recorded(torch.cat(targets), torch.cat(drafters), contexts)


def mean_probs_at(
    states: Tensor, head: Tensor, temperatures: Iterable[float]
) -> dict[float, Tensor]:
    """`[V_t]` float64 by temperature: the target's mean distribution at states `[..., d]`."""
    parts = states.flatten(0, -2).split(BLOCK)
    return {
        at: sum(((part @ head.T) / at).softmax(1).sum(0).double() for part in parts)
        / sum(map(len, parts))
        for at in temperatures
    }
