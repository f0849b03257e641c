"""Where bounds on masses cannot say which columns top-p keeps, the masses themselves do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rdk_cuda.reference import truncation
from tests import generators

SIZE, ROWS = 20_000, 150
# Steps of float32 from the share that just keeps a column.
STEPS = (-40, -8, -1, 0, 1, 8, 40)


def rows_of(shape: str) -> Tensor:
    """[ROWS, SIZE] float32; each has another level in every chunk."""
    random = generators.generator(3)
    z = torch.randn(ROWS, SIZE, generator=random)
    levels = torch.rand(ROWS, SIZE // 1000, generator=random).repeat_interleave(1000, 1)
    if shape == "flat":
        return z * 1e-3 + 0.1 * levels
    if shape == "nearly flat":
        return z + levels
    if shape == "one as heavy as the others":  # a sample that has it says that it is all
        z[:, 0] = math.log(2 * SIZE)
        return z
    rare = torch.rand(ROWS, SIZE, generator=random) < 0.001
    return 2 * z + 9 * rare + levels


def edge(row: Tensor, share: float) -> float:
    """The share of all masses that the columns down to about `share` of them have: of a thousand
    such shares, the one that float32 says best. No sum of float32 is as close to it."""
    running = truncation.masses(row.sort(descending=True).values - row.max()).cumsum(0)
    shares = running.double() / int(running[-1])
    first = int((shares < share).sum())
    near = shares[max(0, first - 500) : first + 500]
    return float(near[(near.float().double() - near).abs().argmin()])


def moved(value: float, steps: int) -> float:
    """By so many neighbours of float32."""
    moved = torch.tensor(value)
    for _ in range(abs(steps)):
        moved = moved.nextafter(torch.tensor(math.copysign(9.0, steps)))
    return float(moved)


@pytest.mark.parametrize("shape", ["flat", "nearly flat", "peaked", "one as heavy as the others"])
def test_top_p_next_to_an_edge_keeps_what_the_masses_say(shape: str) -> None:
    z, affinity = rows_of(shape), generators.affinity("identity", SIZE)
    shares = torch.rand(ROWS, generator=generators.generator(4)) * 0.9 + 0.05
    top_p = torch.tensor(
        [
            moved(edge(row, float(share)), STEPS[i % len(STEPS)])
            for i, (row, share) in enumerate(zip(z, shares, strict=True))
        ]
    )
    keys, ones = torch.arange(ROWS), torch.ones(ROWS)
    _, stats = torch.ops.rdk.draft(z, ones, keys, keys, *affinity.by_draft, top_p=top_p)
    expected = [
        truncation.threshold(row, truncation.Limits(top_p=float(p)))
        for row, p in zip(z, top_p, strict=True)
    ]
    assert torch.equal(stats[:, -1], torch.tensor(expected))
