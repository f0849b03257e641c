"""Calls with a mask, top-k, top-p, min-p and log-probabilities."""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from tests import generators
from tests.generators import Batch

SIZES = (1, 2, 31, 33, 100, 1023, 1025, 2500)
TOP_P = (1.0, 0.5, 0.9, 1e-6, 1 - 1e-7)
MIN_P = (0.0, 1.0, 0.1, 0.01, 1e-20)


def chosen(random: Random, values: tuple[float, ...], count: int) -> Tensor:
    return torch.tensor([random.choice(values) for _ in range(count)], dtype=torch.float32)


def some_words(rows: int, size: int, random: Random) -> Tensor:
    """Masks that allow half of the tokens, all of them, one or none."""
    words = torch.randint(
        -(2**31), 2**31 - 1, (rows, -(-size // 32)), dtype=torch.int32,
        generator=generators.generator(random.getrandbits(30)),
    )  # fmt: skip
    for row in words:
        row[random.randrange(row.numel()) :] = random.choice([0, -1, 1, 5])
    return words


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
    target = batch.target_logits
    if random.random() < 0.4:  # ties by the hundred, and flat rows
        target = (target.float() * random.choice((0.0, 0.5, 2.0))).round().to(target.dtype)
        target = target.masked_fill(batch.target_logits == -math.inf, -math.inf)
    count = len(lengths)
    top_k = [random.choice((0, 1, 2, 7, size // 2, size, size + 3)) for _ in range(count)]
    given = {
        "top_k": torch.tensor(top_k, dtype=torch.int32),
        "top_p": chosen(random, TOP_P, count),
        "min_p": chosen(random, MIN_P, count),
        "allowed": some_words(target.shape[0], size, random),
    }
    kept = {name: tensor for name, tensor in given.items() if random.random() < 0.6}
    return batch.replace(target_logits=target, logprobs=random.choice((0, 1, 2)), **kept)
