"""Trees that are walked inside of a mask, top-k, top-p and min-p."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

from rdk_cuda import reference
from tests import generators, tree_generators
from tests.devices import MACHINES
from tests.tolerances import assert_same_draws

from .truncated_batches import MIN_P, SIZES, TOP_P, chosen, some_words


def assert_walks_trees_as_the_reference(seed: int) -> int:
    random = Random(seed)
    size, sizes = random.choice(SIZES), [random.randrange(15) for _ in range(random.randint(1, 4))]
    trees = tree_generators.trees(
        sizes, size, seed, dtype=random.choice(generators.DTYPES),
        temperature=random.choice((1.0, 0.7, 0.0)), forbidden=random.choice((0.0, 0.3)),
    )  # fmt: skip
    count = len(sizes)
    top_k = [random.choice((0, 1, 2, 7, size, -1)) for _ in range(count)]
    given = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, (*TOP_P, math.nan), count),
        "min_p": chosen(random, MIN_P, count),
        "allowed": some_words(trees.target_logits.shape[0], size, random),
    }
    trees = trees.replace(**{n: tensor for n, tensor in given.items() if random.random() < 0.6})
    trace = reference.Trace()
    expected = reference.verify_tree(*trees.arguments(), dtype=torch.float64, trace=trace)
    actual = torch.ops.rdk.verify_tree(*trees.arguments())
    for one, other in zip(actual, expected, strict=True):
        assert_same_draws(one, other, trace.margins(count))
    return int(actual[1].sum())


@pytest.mark.fast_in_the_emulator
def test_truncated_trees_are_walked_as_by_the_reference(device: str) -> None:
    trees = 24 if device in MACHINES else 300
    assert sum(map(assert_walks_trees_as_the_reference, range(trees))) > trees
