"""`rdk::verify_tree` with drawn nodes walks where the reference walks, and along a chain it is
`verify`."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators, tree_generators
from tests.operators.test_verify_tree import assert_walks_as_the_reference
from tests.tree_generators import Trees, chains

pytestmark = pytest.mark.usefixtures("device")

SIZES = [9, 0, 1, 30, 5, 17] * 3
METHODS = [0, 1]  # by token, by block


def walk(trees: Trees) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.rdk.verify_tree(*trees.arguments())
    return found


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-2", "mixed-4"])
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype, method: int) -> None:
    trees = tree_generators.mixed_trees(
        generators.affinity(kind, 2500),
        SIZES,
        dtype=dtype,
        temperature=0.8,
        draft_temperature=1.3,
        dynamic=9,
        forbidden=0.1,
    ).replace(method=method)
    assert assert_walks_as_the_reference(trees).sum() > 4


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drawn", [0.0, 1.0])
def test_none_or_all_of_the_nodes_are_drawn(drawn: float, method: int) -> None:
    affinity = generators.affinity("virtual", 1100)
    trees = tree_generators.mixed_trees(affinity, SIZES, drawn=drawn).replace(method=method)
    assert assert_walks_as_the_reference(trees).sum() > 5


@pytest.mark.parametrize("method", METHODS)
def test_stats_that_draft_returned_change_no_bit(method: int) -> None:
    affinity = generators.affinity("mixed-3", 2500)
    trees = tree_generators.mixed_trees(affinity, SIZES, dynamic=5).replace(method=method)
    given = trees.with_stats()
    assert all(map(torch.equal, walk(given), walk(trees)))
    assert_walks_as_the_reference(given)


# ------------------------------------------------------------------------------ what it is made of


@pytest.mark.fast_in_the_emulator(kind=("virtual",), temperatures=((0.8, 1.2),))
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("temperatures", [(0.8, 1.2), (1.0, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-2"])
def test_a_chain_of_drawn_nodes_is_verify_to_the_bit(
    kind: str, temperatures: tuple[float, float], method: int
) -> None:
    target, draft = temperatures
    batch = generators.batch(
        generators.affinity(kind, 300),
        [3, 0, 1, 8, 5, 12] * 5,
        target_temperature=target,
        draft_temperature=draft,
        dynamic=7,
        forbidden=0.05,
    ).replace(method=method)
    batch.draft_token_ids[[7, 30]] = torch.tensor([-1, 300])
    tokens, accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    walked = walk(chains(batch))
    assert torch.equal(walked[0], tokens)
    assert torch.equal(walked[1], accepted)
    if target != 0:
        assert 5 < accepted.sum() < batch.draft_token_ids.numel() - 20
    for b, count in enumerate(accepted.tolist()):
        assert walked[2][b, :count].tolist() == list(range(count))


@pytest.mark.parametrize("max_depth", [0, 1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_chain_that_is_cut_short_is_verify_too(method: int, max_depth: int) -> None:
    batch = generators.batch(generators.affinity("identity", 60), [4] * 60)
    batch = batch.replace(method=method, max_draft=max_depth)
    tokens, accepted, _ = torch.ops.rdk.verify(*batch.arguments())
    walked = walk(chains(batch))
    assert torch.equal(walked[0], tokens)
    assert torch.equal(walked[1], accepted)


@pytest.mark.fast_in_the_emulator
def test_with_fixed_nodes_alone_a_drafter_changes_nothing() -> None:
    trees = tree_generators.trees(SIZES, 1100, temperature=0.9)
    made = tree_generators.mixed_trees(generators.affinity("virtual", 1100), SIZES)
    both = trees.replace(
        draft_logits=made.draft_logits,
        draft_rows=torch.full_like(trees.parents, -1),
        draft_temperature=made.draft_temperature,
        affinity=made.affinity,
    )
    assert all(map(torch.equal, walk(both), walk(trees)))


@pytest.mark.fast_in_the_emulator
def test_at_temperature_zero_drawn_nodes_are_as_fixed_ones() -> None:
    """Nothing of the drafter is read, whichever method."""
    affinity = generators.affinity("virtual", 1100)
    trees = tree_generators.mixed_trees(affinity, SIZES, temperature=0.0)
    trees.draft_logits.fill_(math.nan)
    fixed = trees.replace(draft_rows=None, draft_logits=None, draft_temperature=None, affinity=None)
    expected = walk(fixed)
    assert expected[1].sum() > 5
    for method in METHODS:
        assert all(map(torch.equal, walk(trees.replace(method=method)), expected))


# ---------------------------------------------------------------------------- the rule, by example


def star(
    target: list[float], tokens: list[int], rows: list[int], method: int, sequences: int = 60
) -> Trees:
    """Children of the root, none of which has any; q is one-hot on each drawn one."""
    size, nodes = len(target), len(tokens)
    affinity = generators.affinity("identity", size)
    p = torch.tensor(target).clamp(min=1e-30).log()
    made = tree_generators.mixed_trees(affinity, [nodes] * sequences)
    logits = torch.full((nodes, size), -math.inf)
    logits[range(nodes), tokens] = 0.0
    return made.replace(
        target_logits=p.repeat(sequences * (nodes + 1), 1),
        tree_token_ids=torch.tensor(tokens * sequences),
        parents=torch.full((nodes * sequences,), -1, dtype=torch.int32),
        draft_logits=logits,
        draft_rows=torch.tensor(rows * sequences, dtype=torch.int32),
        method=method,
    )


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
def test_of_drawn_siblings_the_first_counts(method: int) -> None:
    """The second has the likelier token, and is never accepted; the fixed one behind it is."""
    trees = star([0.1, 0.6, 0.3], [0, 1, 2], [0, 1, -1], method)
    tokens, accepted, path = walk(trees)
    assert set(path[:, 0].tolist()) == {-1, 0, 2}
    assert (path[tokens[:, 0] == 1, 0] == -1).all()
    assert torch.equal(accepted, (tokens[:, 0] != 1).int())
    assert_walks_as_the_reference(trees)


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
def test_a_drawn_node_that_is_not_used_leaves_its_place_to_the_next(method: int) -> None:
    trees = star([0.1, 0.6, 0.3], [0, 1, 2], [0, 1, -1], method)
    trees.tree_token_ids.view(-1, 3)[:, 0] = -1
    path = walk(trees)[2]
    assert set(path[:, 0].tolist()) == {-1, 1, 2}
    assert_walks_as_the_reference(trees)


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
def test_a_replacement_never_walks_to_the_drawn_child(method: int) -> None:
    """Where it is rejected by rule, its token may be drawn from p."""
    for row in (7, -2):
        trees = star([0.5, 0.5], [0, 1], [row, -1], method)
        tokens, accepted, path = walk(trees)
        assert set(tokens[:, 0].tolist()) == {0, 1}
        assert torch.equal(accepted, (tokens[:, 0] == 1).int())
        assert torch.equal(path[:, 0], torch.where(tokens[:, 0] == 1, 1, -1).int())


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("method", METHODS)
def test_a_token_that_is_drawn_and_fixed_is_accepted_at_either(method: int) -> None:
    """Drawn with certainty, p a half: accepted there; if not, the residual is the other token's."""
    trees = star([0.5, 0.5], [0, 0, 1], [-1, 1, -1], method)
    tokens, _, path = walk(trees)
    assert torch.equal(path[:, 0], torch.where(tokens[:, 0] == 0, 1, 2).int())
    assert set(tokens[:, 0].tolist()) == {0, 1}


@pytest.mark.fast_in_the_emulator
def test_a_block_after_a_step_to_a_fixed_child_has_words_of_its_own() -> None:
    """Fixed nodes alone: each token is a block's, and `verify` draws them with nested words."""
    count, size, depth = 40, 30, 3
    trees = tree_generators.trees([depth] * count, size)
    trees.parents = torch.tensor([-1, 0, 1] * count, dtype=torch.int32)
    rows = trees.target_logits.view(count, depth + 1, size)
    trees.tree_token_ids = rows[:, :-1].argmax(2).flatten()
    tokens, accepted, _ = walk(trees.replace(method=1))
    assert set(accepted.tolist()) == {0, 1, 2, 3}
    for b, j in itertools.product(range(count), range(depth + 1)):
        if j <= accepted[b]:
            words = reference.philox(
                int(trees.step_keys[b]), int(trees.positions[b]) + j, reference.BLOCK, 0, j
            )
            sums = rows[b, j].double().softmax(0).cumsum(0)
            assert int(tokens[b, j]) == int((sums <= reference.uniform(words[1])).sum())


# ------------------------------------------------------------------------------------- bad values


KINDS = ["identity", "intersection", "virtual", "mixed-2"]


def assert_any_trees_are_walked(kind: str, seed: int, batches: int) -> None:
    """Of up to 40 nodes, now and then 1,024: cycles, forward references, twins, foreign tokens and
    rows, both methods."""
    affinity = generators.affinity(kind, 23)
    shapes = generators.generator(seed)
    for number in range(batches):
        sizes = torch.randint(0, 12, (36,), generator=shapes).tolist()
        sizes += torch.randint(0, 40, (4,), generator=shapes).tolist()
        sizes += [1024] if number % 40 == 39 else []
        for temperature, method, dynamic in ((1.0, 0, 3), (0.7, 1, 0), (1.2, number % 2, 3)):
            trees = tree_generators.mixed_trees(
                affinity,
                sizes,
                seed + 10 * number,
                temperature=temperature,
                draft_temperature=1.1,
                dynamic=dynamic,
                forbidden=0.1,
                bad=(0.0, 0.04)[number % 2],
            ).replace(method=method)
            assert_walks_as_the_reference(trees)


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("kind", KINDS)
def test_any_tree_of_any_shape(kind: str) -> None:
    assert_any_trees_are_walked(kind, 0, 2)


@pytest.mark.night
@pytest.mark.not_on("small-batches", "large-batches")
@pytest.mark.parametrize("kind", KINDS)
def test_a_hundred_thousand_trees(kind: str) -> None:
    assert_any_trees_are_walked(kind, 100, 210)
