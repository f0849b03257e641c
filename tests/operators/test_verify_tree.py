"""`rdk::verify_tree` walks where the reference walks, and puts out what the target would."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import reference
from tests import generators, tree_generators
from tests.tolerances import assert_same_draws
from tests.tree_generators import Trees

SIZES = [9, 0, 1, 30, 5, 17] * 3
pytestmark = pytest.mark.usefixtures("device")


def assert_walks_as_the_reference(trees: Trees) -> Tensor:
    """Returns how many nodes are accepted."""
    actual = torch.ops.rdk.verify_tree(*trees.arguments())
    trace = reference.Trace()
    expected = reference.verify_tree(*trees.arguments(), dtype=torch.float64, trace=trace)
    for one, other, dtype in zip(
        actual, expected, (torch.int64, torch.int32, torch.int32), strict=True
    ):
        assert one.dtype == dtype
        assert_same_draws(one, other, trace.margins(trees.size))
    tokens, accepted, path = actual
    for b, count in enumerate(accepted.tolist()):
        assert (tokens[b, count + 1 :] == -1).all()
        assert (path[b, count:] == -1).all()
        # The path leads from child to child, along the tokens that are put out.
        nodes = [-1, *path[b, :count].tolist()]
        start = int(trees.tree_offsets[b])
        for depth, (parent, node) in enumerate(itertools.pairwise(nodes)):
            assert trees.parents[start + node] == parent
            assert trees.tree_token_ids[start + node] == tokens[b, depth]
    return accepted


@pytest.mark.fast_in_the_emulator(size=(2500,))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 1024, 2500])
def test_every_dtype_and_vocabulary(size: int, dtype: torch.dtype) -> None:
    for temperature, forbidden in ((1.0, 0.0), (0.7, 0.3)):
        trees = tree_generators.trees(
            SIZES, size, dtype=dtype, temperature=temperature, forbidden=forbidden
        )
        accepted = assert_walks_as_the_reference(trees)
        assert accepted.sum() > 10


@pytest.mark.fast_in_the_emulator
def test_temperature_zero_walks_along_the_argmax() -> None:
    trees = tree_generators.trees(SIZES, 2500, temperature=0.0)
    tokens, accepted, path = torch.ops.rdk.verify_tree(*trees.arguments())
    assert assert_walks_as_the_reference(trees).sum() > 10
    best = trees.target_logits.argmax(1)
    for b, count in enumerate(accepted.tolist()):
        start = int(trees.tree_offsets[b]) + b + 1
        rows = [start - 1, *(start + path[b, :count]).tolist()]
        assert tokens[b, : count + 1].tolist() == best[rows].tolist()


def test_the_words_of_a_position_do_not_depend_on_the_tree() -> None:
    """A chain, the same chain among other branches, and no tree: the same tokens as far as they go.

    Without a tree the step is `verify`'s without drafts.
    """
    count, size, depth = 60, 40, 3
    chain = tree_generators.trees([depth] * count, size)
    chain.parents = torch.tensor([-1, 0, 1] * count, dtype=torch.int32)
    rows = chain.target_logits.view(count, depth + 1, size)
    chain.tree_token_ids = rows[:, :-1].argmax(2).flatten()
    tokens, accepted, _ = torch.ops.rdk.verify_tree(*chain.arguments())
    # Node 2n + 1 is the chain's n-th; another child comes before each.
    others = torch.full((count, depth), size)
    branching = chain.replace(
        target_logits=rows[:, [0, 0, 1, 0, 2, 0, 3]].flatten(0, 1),
        tree_token_ids=torch.stack([others, chain.tree_token_ids.view(count, depth)], 2).flatten(),
        parents=torch.tensor([-1, -1, 1, 1, 3, 3] * count, dtype=torch.int32),
        tree_offsets=chain.tree_offsets * 2,
    )
    same = torch.ops.rdk.verify_tree(*branching.replace(max_depth=depth).arguments())
    assert torch.equal(same[0], tokens)
    assert torch.equal(same[1], accepted)
    assert set(accepted.tolist()) == {0, 1, 2, 3}

    none = chain.replace(
        target_logits=rows[:, 0],
        tree_token_ids=torch.empty(0, dtype=torch.int64),
        parents=torch.empty(0, dtype=torch.int32),
        tree_offsets=torch.zeros(count + 1, dtype=torch.int32),
        max_depth=0,
    )
    first = torch.ops.rdk.verify_tree(*none.arguments())[0]
    assert torch.equal(first[:, 0], tokens[:, 0])
    plain = generators.batch(generators.affinity("identity", size), [0] * count).replace(
        target_logits=rows[:, 0].contiguous(), step_keys=chain.step_keys, positions=chain.positions
    )
    assert torch.equal(torch.ops.rdk.verify(*plain.arguments())[0], first)


@pytest.mark.fast_in_the_emulator
def test_of_siblings_with_one_token_the_first_wins() -> None:
    target = torch.full((5, 9), -60.0)
    target[range(5), [4, 1, 2, 3, 5]] = 60.0
    tree = tree_generators.trees([4], 9).replace(
        target_logits=target,
        tree_token_ids=torch.tensor([4, 4, 1, 1]),
        parents=torch.tensor([-1, -1, 1, 0], dtype=torch.int32),
    )
    tokens, accepted, path = torch.ops.rdk.verify_tree(*tree.arguments())
    # The child of the second 4, node 2, is out of reach; that of the first is node 3.
    assert tokens.tolist() == [[4, 1, 5, -1, -1]]
    assert accepted.tolist() == [2]
    assert path.tolist() == [[0, 3, -1, -1]]


@pytest.mark.parametrize("shape", ["a chain", "a star", "a comb"])
def test_a_thousand_nodes_of_any_shape(shape: str) -> None:
    nodes, size = 1024, 1500
    index = torch.arange(nodes, dtype=torch.int32)
    parents = {
        "a chain": index - 1,
        "a star": torch.full_like(index, -1),
        "a comb": torch.where(index % 2 == 0, index - 2, index - 1).clamp(min=-1),
    }[shape]
    target = torch.full((nodes + 1, size), -60.0)
    tokens = torch.arange(nodes) if shape == "a star" else torch.full((nodes,), 3)
    if shape == "a comb":
        tokens[1::2] = 4  # its teeth
    target[:, 3] = 60.0
    if shape == "a star":
        target[0, 3], target[0, 1000] = -60.0, 60.0
    tree = tree_generators.trees([1], size).replace(
        target_logits=target,
        tree_token_ids=tokens,
        parents=parents,
        tree_offsets=torch.tensor([0, nodes], dtype=torch.int32),
        max_depth=nodes,
    )
    accepted = assert_walks_as_the_reference(tree)
    assert accepted.item() == {"a chain": 1024, "a star": 1, "a comb": 512}[shape]


# ----------------------------------------------------------------------------- the Python layer


def test_the_python_layer_is_the_operator_on_a_batch() -> None:
    batch, nodes, size = 6, 7, 50
    trees = tree_generators.trees([nodes] * batch, size, temperature=0.8)
    seeds, positions = torch.arange(batch), torch.arange(batch) + 90
    trees = trees.replace(step_keys=rdk_cuda.step_keys(seeds, positions), positions=positions)
    parents = trees.parents.view(batch, nodes)
    verified = rdk_cuda.verify_tree(
        trees.target_logits.view(batch, nodes + 1, size),
        trees.tree_token_ids.view(batch, nodes),
        parents.long(),
        0.8,
        seeds=seeds,
        positions=positions,
    )
    assert all(map(torch.equal, verified, torch.ops.rdk.verify_tree(*trees.arguments())))
    # One shape for all; and what does not fit into 32 bits is no parent, also of what is drawn.
    tokens = trees.tree_token_ids.view(batch, nodes).clone()
    tokens[:, -1] = verified.tokens[:, 0]
    one = rdk_cuda.verify_tree(
        trees.target_logits.view(batch, nodes + 1, size),
        tokens,
        torch.cat([parents[0, :-1].long(), torch.tensor([2**32 - 1])]),
        0.8,
        seeds=seeds,
        positions=positions,
        max_depth=2,
    )
    expected = trees.replace(
        tree_token_ids=tokens.flatten(),
        parents=torch.cat([parents[0, :-1], torch.tensor([-2], dtype=torch.int32)]).repeat(batch),
        max_depth=2,
    )
    assert all(map(torch.equal, one, torch.ops.rdk.verify_tree(*expected.arguments())))


def test_the_python_layer_draws_level_by_level_and_walks_as_the_operator() -> None:
    """Two levels, each of a fixed and a drawn child for every node before."""
    batch, size = 20, 30
    affinity = generators.affinity("virtual", size)
    rows = generators.logits(batch * 3, affinity.draft_size).view(batch, 3, -1)
    step = {"seeds": torch.arange(batch), "positions": 7}
    first = rdk_cuda.draft(rows[:, :1], affinity, 0.9, **step)
    second = rdk_cuda.draft(
        rows[:, 1:], affinity, after=first, ahead=1, branches=torch.tensor([[1, 2]] * batch)
    )
    own = torch.full((batch, 2), 0.9), first.step_keys[:, None].repeat(1, 2)
    branches = torch.tensor([[1, 2]] * batch).int()
    again = torch.ops.rdk.draft(
        rows[:, 1:], *own, torch.full((batch, 2), 7 + 1), *affinity.by_draft, branches=branches
    )
    assert torch.equal(second.tokens, again[0])
    fixed = torch.full((batch, 1), 3)
    drawn = torch.cat([first.tokens, second.tokens], 1)
    tokens = torch.cat([fixed, drawn[:, :1], fixed, drawn[:, 1:2], fixed, drawn[:, 2:]], 1)
    parents = torch.tensor([-1, -1, 0, 0, 1, 1])
    node_rows = torch.tensor([-1, 0, -1, 1, -1, 2])
    target = generators.logits(batch * 7, size, 5).view(batch, 7, size)
    for method, number in (("token", 0), ("block", 1)):
        verified = rdk_cuda.verify_tree(
            target,
            tokens,
            parents,
            0.8,
            draft=[first, second],
            draft_rows=node_rows.repeat(batch, 1),
            affinity=affinity,
            method=method,
            max_depth=2,
        )
        rows_of_batch = torch.where(
            node_rows >= 0, node_rows + 3 * torch.arange(batch)[:, None], -1
        )
        expected = torch.ops.rdk.verify_tree(
            target.flatten(0, 1),
            tokens.flatten(),
            parents.int().repeat(batch),
            torch.arange(batch + 1, dtype=torch.int32) * 6,
            torch.full((batch,), 0.8),
            first.step_keys,
            first.positions,
            2,
            *(None,) * 4,
            rows.flatten(0, 1),
            None,
            rows_of_batch.flatten().int(),
            first.temperature,
            *affinity.by_target,
            method=number,
        )
        assert all(map(torch.equal, verified, expected))
        assert 0 < verified.num_accepted.sum() < 2 * batch
    again, _ = torch.ops.rdk.draft(
        rows[:, 1:].contiguous(),
        torch.full((batch, 2), 0.9),
        first.step_keys[:, None].expand(batch, 2).contiguous(),
        torch.full((batch, 2), 8),
        *affinity.by_draft,
        branches=torch.tensor([[1, 2]] * batch, dtype=torch.int32),
    )
    assert torch.equal(second.tokens, again)
