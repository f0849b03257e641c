"""A language model small enough to know everything about: its logits stand in a table."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import scipy.stats
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity
from rdk_cuda.decoding import Output, SpeculativeDecoder
from rdk_cuda.decoding.trees import branch


class TableModel:
    """Logits that depend on the last two of `size` tokens: row `a * size + b` of the table.

    The hidden state is that row's one-hot vector, so `table.T` is the LM head. What the protocol
    leaves open is NaN here: a decoder that reads it shows at once.
    """

    device = torch.device("cpu")
    context = math.inf

    def __init__(self, table: Tensor, size: int) -> None:
        self.table, self.size, self.vocabulary_size = table, size, table.shape[1]
        self.sequences: list[list[int]] = []
        self.passes = 0

    @property
    def lengths(self) -> list[int]:
        return [len(sequence) for sequence in self.sequences]

    def reset(self, batch_size: int) -> None:
        self.sequences = [[] for _ in range(batch_size)]
        self.nodes: list[list[int]] = [[] for _ in range(batch_size)]

    def rollback(self, lengths: Sequence[int]) -> None:
        self.keep_paths([[]] * len(lengths))
        for sequence, length in zip(self.sequences, lengths, strict=True):
            del sequence[length:]

    def feed(self, tokens: Sequence[Sequence[int]], keep: Sequence[int]) -> Output:
        return self.feed_tree(tokens, keep, [()] * len(tokens))

    def feed_tree(
        self, tokens: Sequence[Sequence[int]], keep: Sequence[int], parents: Sequence[Sequence[int]]
    ) -> Output:
        """Rows of nodes by the branch that each ends."""
        assert all(0 <= token < self.size for new in tokens for token in new)
        assert any(keep)
        self.passes += 1
        rows, most = [], max(keep)
        for b, (sequence, new) in enumerate(zip(self.sequences, tokens, strict=True)):
            nodes = self.nodes[b]
            first = len(new) - (len(parents[b]) - len(nodes))
            assert 0 <= len(new) - first <= keep[b]
            sequence.extend(new[:first])
            nodes.extend(new[first:])
            own = []
            for end in range(len(nodes) + 1 - keep[b], len(nodes) + 1):  # 0 is the root
                known = sequence[: len(sequence) + min(end, 0)]
                path = branch(parents[b], end - 1) if end > 0 else []
                own.append(self.state([*known, *(nodes[node] for node in path)]))
            rows.append(own + [-1] * (most - keep[b]))
        states = torch.tensor(rows)
        padded = torch.cat([self.table, torch.full((1, self.vocabulary_size), torch.nan)])
        return Output(padded[states], torch.eye(len(padded))[states, :-1])

    def keep_paths(self, paths: Sequence[Sequence[int]]) -> None:
        for sequence, nodes, path in zip(self.sequences, self.nodes, paths, strict=True):
            sequence.extend(nodes[node] for node in path)
            nodes.clear()

    def state(self, context: Sequence[int]) -> int:
        return ([0, *context][-2]) * self.size + context[-1]

    def logits(self, context: Sequence[int]) -> Tensor:
        return self.table[self.state(context)]


class RejectedDrafts:
    """Offers the token once drafted for the position, so that rejected drafts live on.

    Args:
        prompt: how long contexts are where sequences begin.
    """

    def __init__(self, prompt: int) -> None:
        self.prompt, self.drafted = prompt, list[dict[int, int]]()

    def __call__(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        begins = all(len(context) == self.prompt for context in contexts)
        if begins or len(self.drafted) != len(contexts):
            self.drafted = [{} for _ in contexts]
        for drafted, context in zip(self.drafted, contexts, strict=True):
            drafted.update(enumerate(context))
        offered = [d.get(len(c), -1) for d, c in zip(self.drafted, contexts, strict=True)]
        return torch.tensor(offered)[:, None]


def random_table(size: int, seed: int, spread: float = 1.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(size * size, size, generator=generator)


def pruned(table: Tensor, affinity: Affinity) -> Tensor:
    """The table of a drafter whose head has the rows that the affinity leads from.

    The identity on kept tokens, and the mean logit of its members for a virtual token.
    """
    return table @ affinity.dense().T.to(table.dtype)


def greedy(model: TableModel, prompt: Sequence[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        row = model.logits(tokens)
        tokens.append(int((row == row.max()).nonzero()[0]))
    return tokens[len(prompt) :]


def joint(
    model: TableModel,
    prompt: Sequence[int],
    count: int,
    temperature: float = 1.0,
    tokens: Sequence[int] | None = None,
) -> dict[tuple[int, ...], float]:
    """The exact probability of every continuation of `count` of these tokens, or of all."""
    probabilities = {}
    for continuation in itertools.product(tokens or range(model.size), repeat=count):
        text, p = list(prompt), 1.0
        for token in continuation:
            p *= float(torch.softmax(model.logits(text).double() / temperature, 0)[token])
            text.append(token)
        probabilities[continuation] = p
    return probabilities


@torch.no_grad()
def joint_of(model: Any, prompt: Sequence[int], count: int) -> dict[tuple[int, ...], float]:
    """The same of a Hugging Face model, at temperature 1."""
    probabilities: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        contexts = torch.tensor([[*prompt, *tokens] for tokens in probabilities])
        rows = model(contexts).logits[:, -1].double().softmax(-1).tolist()
        probabilities = {
            (*tokens, x): mass * p
            for (tokens, mass), row in zip(probabilities.items(), rows, strict=True)
            for x, p in enumerate(row)
        }
    return probabilities


def judge_by_another_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake: drafts are judged by a flatter distribution than they were drawn from."""
    verify: Callable[..., Any] = rdk_cuda.verify

    def wrong(logits: Any, draft: Any, *rest: Any, **options: Any) -> Any:
        if draft.logits is not None:
            draft = replace(draft, stats=None, logits=draft.logits * 0.2)
        return verify(logits, draft, *rest, **options)

    monkeypatch.setattr(rdk_cuda.functional, "verify", wrong)


def chi_square(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """p-value of the counts; cells that expect fewer than 5 are pooled."""
    total = sum(observed.values())
    cells = [(observed[key], p * total) for key, p in expected.items()]
    large = [cell for cell in cells if cell[1] >= 5]
    small = [cell for cell in cells if cell[1] < 5]
    if small:
        large.append((sum(o for o, _ in small), sum(e for _, e in small)))
    return float(scipy.stats.chisquare(*zip(*large, strict=True)).pvalue)


def continuations(
    decoder: Callable[[], SpeculativeDecoder],
    prompt: Sequence[int],
    count: int,
    samples: int,
    further: int = 0,
    **options: Any,
) -> Counter[tuple[int, ...]]:
    """Sample `count` tokens with seeds 0 to samples - 1, some thousand sequences at a time.

    So many `further` ones are written behind them: positions that are drafted twice matter, too.
    """
    counts: Counter[tuple[int, ...]] = Counter()
    options["max_new_tokens"] = count + further
    for start in range(0, samples, 4096):
        seeds = list(range(start, min(start + 4096, samples)))
        found = decoder().generate([list(prompt)] * len(seeds), seeds=seeds, **options)
        drafted = sum(found.statistics.drafted) > 0
        assert (sum(found.statistics.accepted) > 0) == drafted
        assert (found.statistics.resampled > 0) == drafted
        counts.update(tuple(tokens[:count]) for tokens in found.tokens)
    return counts
