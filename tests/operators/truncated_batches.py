"""Random calls with masks, limits, some of them unusable, and log-probabilities."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import torch
from torch import Tensor

from tests import generators, tree_generators
from tests.generators import Batch
from tests.tree_generators import Trees

SIZES = (1, 2, 31, 33, 100, 1023, 1025, 2500)
TOP_P = (1.0, 0.5, 0.9, 1e-6, 1 - 1e-7)
MIN_P = (0.0, 1.0, 0.1, 0.01, 1e-20)


def some_words(rows: int, size: int, random: Random) -> Tensor:
    """Masks that allow half of the tokens, all of them, one or none."""
    words = torch.randint(
        -(2**31), 2**31 - 1, (rows, -(-size // 32)), dtype=torch.int32,
        generator=generators.generator(random.getrandbits(30)),
    )  # fmt: skip
    for row in words:
        row[random.randrange(row.numel()) :] = random.choice([0, -1, 1, 5])
    return words


def some_limits(random: Random, count: int, size: int, rows: int = 0) -> dict[str, Tensor]:
    """Some kinds of so many; a mask too, or it alone, where it is for `rows`."""

    def chosen(values: tuple[float, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.tensor([random.choice(values) for _ in range(count)], dtype=dtype)

    given = {
        "top_k": chosen((0, 1, 2, 7, size // 2, size, size + 3, -1), torch.int32),
        "top_p": chosen((*TOP_P, *TOP_P, math.nan)),
        "min_p": chosen(MIN_P),
        **({"allowed": some_words(rows, size, random)} if rows else {}),
    }
    alone = rows and random.random() < 0.2
    return {
        name: tensor
        for name, tensor in given.items()
        if (name == "allowed" if alone else random.random() < 0.6)
    }


def tied(random: Random, logits: Tensor) -> Tensor:
    """Some with ties by the hundred, and flat."""
    if random.random() > 0.4:
        return logits
    rounded = (logits.float() * random.choice((0.0, 0.5, 2.0))).nan_to_num().round()
    return rounded.to(logits.dtype).masked_fill(logits == -math.inf, -math.inf)


def random_batch(seed: int) -> Batch:
    random = Random(seed)
    size, lengths = random.choice(SIZES), [random.randrange(4) for _ in range(random.randint(1, 4))]
    batch = generators.batch(
        generators.affinity(random.choice(("identity", "virtual", "mixed-2")), size),
        lengths,
        seed,
        dtype=random.choice(generators.DTYPES),
        target_temperature=random.choice((1.0, 0.7, 1.3, 0.0)),
        dynamic=random.choice((0, 3)),
        scale=random.choice((0.0, 1.0, 2.0, 5.0)),
        forbidden=random.choice((0.0, 0.3, 0.95)),
    )
    target = tied(random, batch.target_logits)
    limits = some_limits(random, len(lengths), size, len(target))
    options = {"logprobs": random.choice((0, 1, 2)), "method": random.randrange(2)}
    return batch.replace(target_logits=target, **options, **limits)


def random_drafts(seed: int) -> tuple[Batch, dict[str, Any]]:
    """Draft rows, and their limits."""
    random = Random(seed)
    kind = random.choice(("identity", "virtual", "mixed-2", "mixed-4", "intersection"))
    batch = generators.batch(
        generators.affinity(kind, random.choice(SIZES[1:])),
        [random.randrange(4) for _ in range(3)],
        seed,
        dtype=random.choice(generators.DTYPES),
        draft_temperature=random.choice((1.0, 0.7, 0.0)),
        dynamic=random.choice((0, 3, 7)),
        scale=random.choice((0.0, 1.0, 3.0)),
        forbidden=random.choice((0.0, 0.3)),
    )
    batch = batch.replace(draft_logits=tied(random, batch.draft_logits))
    return batch, some_limits(random, len(batch.draft_logits), batch.affinity.draft_size)


def random_trees(seed: int) -> Trees:
    random = Random(seed)
    size, sizes = random.choice(SIZES), [random.randrange(15) for _ in range(random.randint(1, 4))]
    trees = tree_generators.trees(
        sizes, size, seed, dtype=random.choice(generators.DTYPES),
        temperature=random.choice((1.0, 0.7, 0.0)), forbidden=random.choice((0.0, 0.3)),
    )  # fmt: skip
    return trees.replace(**some_limits(random, len(sizes), size, len(trees.target_logits)))
