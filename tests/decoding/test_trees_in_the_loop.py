"""Trees in the decoder: the target reads them in one pass, and what it accepts stays read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from table_model import TableModel, greedy, pruned
from test_hooks import no_repeats, process, stale
from test_parts import AFFINITY, DRAFTER, TARGET, VOCABULARY, chain, decoder
from torch import Tensor

import rdk_cuda
from rdk_cuda import RecentTokens
from rdk_cuda.decoding import DrafterTree, Proposal, Proposer, SpeculativeDecoder, Step
from rdk_cuda.decoding.generation import Continuation
from rdk_cuda.decoding.trees import branch

SIZE = TARGET.size
HEAD = ((DRAFTER.T + 1).contiguous(), None)
PROMPTS = [[1], [4, 4, 5, 4], [0, 3, 5, 2, 0, 3], [2, 2]]


class RandomTrees(Proposer):
    """Any shape, foreign order, unused nodes, twins; of each sequence by its own position.

    Some parents are no earlier node: such a node is nobody's child.
    """

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        tokens, parents = [], []
        for s in sequences:
            rng = random.Random(s.length)
            most = [rng.choice([node - 1, node - 1, 7]) for node in range(7)]
            parents.append([rng.randint(-1, last) for last in most])
            tokens.append([rng.choice([-1, *range(SIZE), *range(SIZE)]) for _ in range(7)])
        return Proposal.tree(torch.tensor(tokens), torch.tensor(parents), step)


def mixed(nodes: int = 6, **options: Any) -> DrafterTree:
    """Two kept tokens and two virtual ones; some nodes have two fixed children and a drawn one."""
    drafter = TableModel(pruned(DRAFTER, AFFINITY), SIZE)
    return DrafterTree(drafter, AFFINITY, **{"nodes": nodes, "passes": 3, "width": 3} | options)


PROPOSERS: dict[str, Any] = {
    "mixed": mixed,
    "dynamic": lambda: mixed(dynamic_tokens=RecentTokens(VOCABULARY, 2, 4), full_head=HEAD),
    "random": RandomTrees,
}


@pytest.mark.parametrize("make", [RandomTrees, chain])
def test_processors_are_asked_about_each_branch(make: Any) -> None:
    """The penalty of `test_hooks.py`, which goes by the tokens that a row is said to follow."""

    def generated(target: TableModel, hook: Any) -> list[list[int]]:
        options: dict[str, Any] = {"max_new_tokens": 40, "seeds": [1, 2, 3, 4], "process": hook}
        result = decoder(make(), target=target).generate(PROMPTS, **options)
        assert sum(result.statistics.accepted) > 0
        return result.tokens

    def asked(sequences: Sequence[Continuation], logits: Tensor) -> Tensor:
        assert all(min(s.context) >= 0 for s in sequences)  # nothing below an unused node
        return process(sequences, logits)

    changed = generated(TableModel(no_repeats(TARGET.table), SIZE), None)
    assert generated(TARGET, asked) == changed != generated(TARGET, stale)


class Deep(Proposer):
    """Deeper than there is room for in the end, and then another branch; a foreign order."""

    def propose(self, sequences: Sequence[Continuation], step: Step) -> Proposal:
        tokens = torch.tensor([[1, 2, 3, 4, 5]] * len(sequences))
        return Proposal.tree(tokens, torch.tensor([[-1, 0, 1, 2, -1]] * len(sequences)), step)


def test_nobody_is_asked_about_branches_beyond_the_room() -> None:
    """Nor does the target read that deep: its context may end there."""
    asked: list[int] = []

    def all_allowed(sequences: Sequence[Continuation], rows: int) -> Tensor:
        asked.extend(s.room - len(s.drafts) for s in sequences if s.room)
        return torch.full((len(sequences), rows, 1), 2**SIZE - 1, dtype=torch.int32)

    class Short(TableModel):
        context = len(PROMPTS[2]) + 11

        def feed_tree(self, tokens: Any, keep: Any, parents: Any) -> Any:
            output = super().feed_tree(tokens, keep, parents)
            for sequence, own in zip(self.sequences, parents, strict=True):
                deep = max((len(branch(own, node)) for node in range(len(own))), default=0)
                assert len(sequence) + deep <= self.context
            return output

    short = decoder(Deep(), target=Short(TARGET.table, SIZE))
    found = short.generate(PROMPTS[2:3], max_new_tokens=12, temperature=0, allowed=all_allowed)
    assert min(asked) == 1
    assert found.tokens == [greedy(TARGET, PROMPTS[2], 12)]


def test_kinds_tell_a_rejected_tree_from_one_that_ended() -> None:
    """The drafter is the target: greedy, all of a chain's nodes are accepted, and a bonus."""
    same = DrafterTree(TableModel(TARGET.table, SIZE), AFFINITY_OF_ALL, nodes=3)
    twins = SpeculativeDecoder(TARGET, proposer=same)
    kinds: list[str] = []
    result = twins.generate(
        [[1]], max_new_tokens=40, temperature=0, on_tokens=lambda b, new, how: kinds.extend(how)
    )
    statistics = result.statistics
    assert kinds.count("resampled") == statistics.resampled
    assert kinds.count("bonus") == statistics.bonus
    assert sum(statistics.accepted) + statistics.resampled + statistics.bonus == 40
    found = decoder(RandomTrees()).generate(PROMPTS, max_new_tokens=40, seeds=1).statistics
    assert sum(found.drafted) - sum(found.accepted) == found.resampled > 0


AFFINITY_OF_ALL = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(SIZE))


def test_a_target_or_drafter_that_reads_no_trees_is_refused() -> None:
    class Chains:
        """The protocol of chains alone."""

        def __init__(self) -> None:
            self.model = TableModel(TARGET.table, SIZE)
            self.feed, self.reset = self.model.feed, self.model.reset
            self.rollback, self.vocabulary_size = self.model.rollback, SIZE
            self.device, self.context = self.model.device, self.model.context

        @property
        def lengths(self) -> list[int]:
            return self.model.lengths

    with pytest.raises(ValueError, match="needs a target that reads trees"):
        decoder(mixed(), target=Chains()).generate([[1]], max_new_tokens=5)
    chains: Any = Chains()
    with pytest.raises(TypeError, match="drafter is a Chains, which has no feed_tree"):
        DrafterTree(chains, AFFINITY)


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize("name", ["nodes", "passes", "width"])
def test_trees_of_nothing_are_refused_by_name(name: str, count: int) -> None:
    with pytest.raises(ValueError, match=f"DrafterTree: {name} is {count}; needs at least 1"):
        mixed(**{name: count})
