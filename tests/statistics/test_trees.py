"""Three tokens that come out of walks down trees have the target's joint distribution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import rdk_cuda
from tests import generators

from .chi_square import assert_caught, assert_fits, histogram

SIZE, LENGTH, SEQUENCES = 4, 3, 60_000
# The root's two likeliest children, two of either's, and one of each of theirs.
PARENTS = torch.tensor([-1, -1, 0, 0, 1, 1, 2, 3, 4, 5], dtype=torch.int32)
TARGET = generators.logits(SIZE, SIZE, 5, scale=1.0)  # what follows each token


def joint() -> Tensor:
    """Of three tokens after token 0."""
    p = TARGET.double().softmax(1)
    return p[0, :, None, None] * p[:, :, None] * p[None, :, :]


def tree_after(last: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest tokens as children, `[B, N]`, and the target's logits `[B, N + 1, V]`."""
    likeliest = TARGET.argsort(1, descending=True)
    before = [last]
    for node, parent in enumerate(PARENTS.tolist()):
        rank = int((PARENTS[:node] == parent).sum())
        before.append(likeliest[before[parent + 1], rank])
    tokens = torch.stack(before, 1)
    return tokens[:, 1:], TARGET[tokens]


def decoded(seeds: Tensor, max_depth: int, shared: bool = False) -> tuple[Tensor, int]:
    """Steps until every sequence has three tokens, and how many were accepted in the first.

    `shared` is the mistake: the position of a step's first token for the later ones, too.
    """
    tokens = torch.zeros(SEQUENCES, 1 + LENGTH, dtype=torch.int64)
    done = torch.zeros(SEQUENCES, dtype=torch.int64)
    first_accepted = -1
    while bool((done < LENGTH).any()):
        going_on = (done < LENGTH).nonzero().flatten()
        last = tokens[going_on, done[going_on]]
        children, target = tree_after(last)
        verified = rdk_cuda.verify_tree(
            target,
            children,
            PARENTS,
            seeds=seeds[going_on],
            positions=torch.zeros_like(last) if shared else done[going_on],
            max_depth=max_depth,
        )
        if first_accepted < 0:
            first_accepted = int(verified.num_accepted.sum())
        for depth in range(max_depth + 1):
            kept = (verified.tokens[:, depth] >= 0) & (done[going_on] < LENGTH)
            rows = going_on[kept]
            done[rows] += 1
            tokens[rows, done[rows]] = verified.tokens[kept, depth]
    return tokens[:, 1:], first_accepted


def cells(tokens: Tensor) -> Tensor:
    return histogram((tokens[:, 0] * SIZE + tokens[:, 1]) * SIZE + tokens[:, 2], SIZE**3)


@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_the_joint_of_three_tokens_is_the_targets(max_depth: int) -> None:
    """A child is accepted exactly as often as the target draws one."""
    tokens, accepted = decoded(torch.arange(SEQUENCES), max_depth)
    assert_fits(cells(tokens), joint())
    children, target = tree_after(torch.zeros(1, dtype=torch.int64))
    p = target.double().softmax(2)[0]
    reached = torch.ones(PARENTS.numel() + 1, dtype=torch.float64)
    depths = torch.zeros(PARENTS.numel() + 1, dtype=torch.int64)
    for node, parent in enumerate(PARENTS.tolist()):
        reached[node + 1] = reached[parent + 1] * p[parent + 1, children[0, node]]
        depths[node + 1] = depths[parent + 1] + 1
    expected = SEQUENCES * float(reached[(depths > 0) & (depths <= max_depth)].sum())
    assert abs(accepted - expected) < 6 * max(1.0, SEQUENCES**0.5 * max_depth)


def test_one_uniform_for_two_depths_is_caught() -> None:
    """Each token by itself looks right, the first, and the joint does not."""
    tokens, _ = decoded(torch.arange(SEQUENCES), 0, shared=True)
    assert_fits(histogram(tokens[:, 0], SIZE), TARGET[0].double().softmax(0))
    assert_caught(cells(tokens), joint())
