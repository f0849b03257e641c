"""Trees have the drafter's best nodes, and one masked pass reads them as each branch by itself."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from rdk_cuda.decoding.trees import Tree, attention_mask, best_first, depths
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


def test_one_masked_pass_reads_every_branch_as_if_it_were_alone() -> None:
    config = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    context = torch.tensor([[3, 1, 4, 1, 5]])
    tree = Tree(torch.tensor([[9, 2, 6, 5, 3, 5]]), torch.tensor([[-1, 0, 0, -1, 3, 2]]))
    seen = attention_mask(tree.parents, 5)
    places = torch.cat([torch.arange(5)[None], 5 + depths(tree.parents)], 1)
    with torch.no_grad():
        together = model(
            torch.cat([context, tree.tokens], 1),
            attention_mask=torch.zeros(seen.shape).masked_fill(~seen, -1e30),
            position_ids=places,
        ).logits[0, 5:]
        for node, branch in enumerate(branches(tree, 0)):
            alone = model(torch.cat([context, torch.tensor([branch])], 1)).logits[0, -1]
            torch.testing.assert_close(together[node], alone, rtol=1e-4, atol=1e-5)
