"""What a target's drafter proposes after contexts: another model, or one on the target's states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.calibration.methods import Method
from rdk_cuda.cli.pairs import Models, StateModels
from rdk_cuda.decoding.trees import Tree, attention_mask, depths
from rdk_cuda.evaluation.speed import cached_pass
from rdk_cuda.integrations.huggingface import HuggingFaceModel

Hidden = Callable[[Tree], Tensor]  # the drafter's last state `[B, d]` after the newest node


@dataclass(frozen=True)
class Pair:
    """Both models, and a drafter of the demo's at a temperature."""

    models: Models
    method: Method
    temperature: float

    def columns(self, hidden: Tensor, branches: list[list[int]]) -> dict[str, Tensor]:
        """The drafter's logits, and dynamic columns if any."""
        return self.method.drafter.columns(self.models.drafter_head, hidden, branches)

    def probs(self, hidden: Tensor, branches: list[list[int]]) -> Tensor:
        """The drafter's q `[B, V_t]`. Greedy drafts are the likeliest tokens at temperature 1."""
        affinity, temperature = self.method.drafter.affinity, self.temperature or 1.0
        return rdk_cuda.redistribute(
            affinity=affinity, temperature=temperature, **self.columns(hidden, branches)
        )

    def target_probs(self, contexts: Tensor, tree: Tree) -> Tensor:
        """The target's p `[B, N + 1, V_t]` after the root and every node."""
        logits = read(self.models.target, contexts, tree).float()
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).float()
        return (logits / self.temperature).softmax(2)


def read(model: Any, contexts: Tensor, tree: Tree, *, hidden: bool = False) -> Tensor:
    """Logits or last hidden states after the root and every node, in one pass."""
    batch, length = contexts.shape
    seen = attention_mask(tree.parents, length)
    places = torch.arange(length).expand(batch, length)
    output = (model.model if hidden else model)(
        torch.cat([contexts, tree.tokens.clamp(min=0)], 1),
        attention_mask=torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min),
        position_ids=torch.cat([places, length + depths(tree.parents)], 1),
        use_cache=False,
    )
    rows: Tensor = output.last_hidden_state if hidden else output.logits
    return rows[:, length - 1 :]


@torch.no_grad()
def drafting(models: Models, contexts: Tensor) -> Hidden:
    """The drafter after these contexts."""
    if not isinstance(models, StateModels):
        return lambda tree: read(models.drafter, contexts, tree, hidden=True)[:, -1]
    drafter, texts = models.drafting(), contexts.tolist()
    batch, length = contexts.shape
    target = HuggingFaceModel(models.target, state_layers=drafter.state_layers)
    target.reset(batch)
    states = target.feed(texts, [length] * batch).states
    assert states is not None  # it was told which layers
    drafter.reset(batch)
    drafter.observe([each[:-1] for each in states])
    drafter.feed([text[:-1] for text in texts], [1] * batch)

    def fed(tokens: list[list[int]]) -> Tensor:
        hidden = drafter.feed(tokens, [len(new) for new in tokens]).hidden
        assert hidden is not None
        return hidden[:, -1]

    def run(tree: Tree) -> Tensor:
        drafter.rollback([length - 1] * batch)
        branches = branch_of_newest(contexts, tree)
        hidden = fed([text[-1:] for text in texts])
        for place in range(length, max(map(len, branches))):
            new = [branch[place : place + 1] for branch in branches]
            longer = torch.tensor(list(map(bool, new)))[:, None]
            hidden = fed(new).where(longer, hidden)
        return hidden

    return run


def branch_of_newest(contexts: Tensor, tree: Tree) -> list[list[int]]:
    """The context of each sequence and the tokens down to its newest node, for dynamic tokens."""
    found = contexts.tolist()
    for sequence, tokens, parents in zip(
        found, tree.tokens.tolist(), tree.parents.tolist(), strict=True
    ):
        branch, node = [], len(tokens) - 1
        while node >= 0:
            branch.append(tokens[node])
            node = parents[node]
        sequence.extend(reversed(branch))
    return found


def drawn_chain(
    pair: Pair, contexts: Tensor, hidden: Hidden, length: int, seed: int
) -> tuple[Tree, Tensor]:
    """A chain drawn from q, its likeliest tokens at temperature 0; and q `[B, K, V_t]`."""
    batch, generator = len(contexts), torch.Generator().manual_seed(seed)
    parents = torch.arange(-1, length - 1).repeat(batch, 1)
    tokens, rows = torch.empty(batch, 0, dtype=torch.int64), []
    for place in range(length):
        chain = Tree(tokens, parents[:, :place])
        rows.append(pair.probs(hidden(chain), branch_of_newest(contexts, chain)))
        if pair.temperature == 0:
            rows[-1] = torch.nn.functional.one_hot(rows[-1].argmax(1), rows[-1].shape[1]).float()
        drawn = torch.multinomial(rows[-1], 1, generator=generator)
        tokens = torch.cat([tokens, drawn], 1)
    return Tree(tokens, parents), torch.stack(rows, 1)


def body_pass(models: Models, context: Tensor) -> Callable[[], object]:
    """The drafter's pass over one token after a context `[1, n]`, with a cache."""
    if isinstance(models, StateModels):
        empty = torch.empty(1, 0, dtype=torch.int64)
        return partial(drafting(models, context), Tree(empty, empty))
    return partial(cached_pass(models.drafter.model, context), 1)
