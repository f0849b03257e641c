"""A walk down a tree accepts a child exactly as often as the target draws one.

That what comes out has the target's distribution is in `tests/decoding/test_trees_in_the_loop.py`.
"""

from __future__ import annotations

import pytest
import torch

import rdk_cuda
from tests import generators

SIZE, SEQUENCES = 4, 60_000
# The root's two likeliest children, two of either's, and one of each of theirs.
PARENTS = [-1, -1, 0, 0, 1, 1, 2, 3, 4, 5]
TARGET = generators.logits(SIZE, SIZE, 5, scale=1.0)  # what follows each token


@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_nodes_are_accepted_as_often_as_the_target_draws_them(max_depth: int) -> None:
    """Of each depth within 5 standard errors: a false alarm in 10^6."""
    likeliest, tokens = TARGET.argsort(1, descending=True).tolist(), [0]
    reached, depths = [1.0], [0]
    for node, parent in enumerate(PARENTS):
        last = tokens[parent + 1]
        tokens.append(likeliest[last][PARENTS[:node].count(parent)])
        p = float(TARGET[last].double().softmax(0)[tokens[-1]])
        reached.append(reached[parent + 1] * p)
        depths.append(depths[parent + 1] + 1)
    verified = rdk_cuda.verify_tree(
        TARGET[tokens].expand(SEQUENCES, -1, -1),
        torch.tensor(tokens[1:]).expand(SEQUENCES, -1),
        torch.tensor(PARENTS),
        seeds=torch.arange(SEQUENCES),
        positions=3,
        max_depth=max_depth,
    )
    for depth in range(1, max(depths) + 1):
        own = zip(reached, depths, strict=True)
        expected = sum(each for each, at in own if at == depth) if depth <= max_depth else 0.0
        found = float((verified.num_accepted >= depth).double().mean())
        assert abs(found - expected) <= 5 * (expected * (1 - expected) / SEQUENCES) ** 0.5
