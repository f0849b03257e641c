"""Trees have the drafter's best nodes."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rdk_cuda.decoding.trees import Tree, best_first, depths
from tests import generators

SIZE = 3
PROBS = generators.logits(SIZE + 1, SIZE, 7).double().softmax(1).float()  # last row: the root's


def after_newest(tree: Tree) -> Tensor:
    """A Markov drafter."""
    return PROBS[tree.tokens[:, -1]] if tree.tokens.shape[1] else PROBS[-1].repeat(2, 1)


def branches(tree: Tree, row: int) -> list[tuple[int, ...]]:
    """The tokens from the root to each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens[row].tolist(), tree.parents[row].tolist(), strict=True):
        assert -1 <= parent < len(found)
        found.append((*(found[parent] if parent >= 0 else ()), token))
    return found


def probability(branch: tuple[int, ...]) -> float:
    rows = (SIZE, *branch)
    return float(torch.stack([PROBS[a, b] for a, b in itertools.pairwise(rows)]).prod())


def test_the_nodes_are_the_most_probable_ones_in_order() -> None:
    nodes = 7
    tree = best_first(after_newest, 2, nodes)
    every = [
        branch
        for length in range(1, nodes + 1)
        for branch in itertools.product(range(SIZE), repeat=length)
    ]
    expected = sorted(every, key=probability, reverse=True)[:nodes]
    assert branches(tree, 0) == branches(tree, 1) == expected
    assert depths(tree.parents)[0].tolist() == [len(branch) - 1 for branch in expected]


def test_a_tree_without_enough_possible_nodes_is_filled_up() -> None:
    certain = torch.tensor([[0.0, 1.0], [0.0, 1.0]])

    def two_tokens(tree: Tree) -> Tensor:
        return certain if tree.tokens.shape[1] < 2 else torch.zeros(2, 2)

    assert best_first(two_tokens, 2, 4).tokens.tolist() == [[1, 1, -1, -1]] * 2
