"""Which values a threshold lets through, to the last bit and the last unit of mass."""

from __future__ import annotations

import math
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda.reference import truncation
from tests import generators
from tests.devices import MACHINES


def filled(size: int, others: float, **values: tuple[slice, float]) -> Tensor:
    row = torch.full((size,), others)
    for columns, value in values.values():
        row[columns] = value
    return row


class Boundary(NamedTuple):
    """A row, limits that cut it, and how many columns they leave, where one can say."""

    row: Tensor
    limits: list[dict[str, Any]]
    kept: int | None = None
    temperatures: tuple[float, ...] = (1.0,)


FIRST, SECOND = slice(0, 1024), slice(1024, 2000)
TIES = filled(4000, -1.0, equal=(slice(1500, 2500), 3.0))
EITHER = [{"top_k": 7}, {"top_k": 1999}, {"top_p": 0.5}, {"top_p": 0.9}]
# Top-k, or min-p, keeps all zeros, so without any of them top-p would need one column less.
ZEROS = filled(3000, -2.0, a=(slice(0, 1500), -0.0), b=(slice(1500, 1800), 0.0))
ZEROS[::300] = 1.0
# Neighbours in float32: each is 1/4000 of the row. Divided by 1.5, some have one quotient.
NEXT = torch.randperm(4000, generator=generators.generator(1)).int()
NEXT = (NEXT + torch.tensor(1.6).view(torch.int32)).view(torch.float32)
CUTS = [{"top_k": k} for k in (1, 2, 7, 1000, 3999, *range(3, 13))]
CUTS += [{"top_p": p} for p in (1e-6, 0.25, 0.5, 0.9997, 1 - 1e-7)]
CUTS += [{"top_k": k, "top_p": 0.5} for k in (2, 3, 999)]


def above_its_bin(bins: int) -> Tensor:
    """CUDA's first turn has 2048 bins of 2^21 floats; and no larger value is in the same chunk."""
    least = (torch.tensor(4.0).view(torch.int32) - (bins << 21) + 1).view(torch.float32)
    return filled(3000, -1.0, a=(slice(5, 6), 4.0), b=(slice(1500, 1510), float(least)))


BOUNDARIES = {
    "ties all stay": Boundary(TIES, [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], 1000),
    **{
        f"zeros of either sign, {sign} first": Boundary(
            filled(3000, -2.0, a=(FIRST, sign), b=(SECOND, -sign)), EITHER, 2000
        )
        for sign in (0.0, -0.0)
    },
    "zeros have their mass where another limit is zero": Boundary(
        ZEROS, [{"top_p": 0.08, "top_k": 100}, {"top_p": 0.08, "min_p": math.exp(-1)}], 1804
    ),
    "the last bit": Boundary(NEXT, CUTS, temperatures=(1.0, 1.5)),
    **{f"least of bin {n}": Boundary(above_its_bin(n), [{"top_k": 2}], 11) for n in (1, 2, 5)},
    "one finite value": Boundary(
        filled(3000, -math.inf, a=(slice(2222, 2223), -70.0)),
        [{"top_k": 5, "top_p": 0.3, "min_p": 0.5}],
        1,
        (0.5,),
    ),
}


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("name", BOUNDARIES)
def test_what_a_threshold_lets_through_is_drawn_with_its_share(name: str, device: str) -> None:
    """One column too many or too few shows in the log-probability, and in the draft's threshold."""
    row, each, kept_columns, temperatures = BOUNDARIES[name]
    count, size = 2 if name == "the last bit" else 20 if device in MACHINES else 1000, len(row)
    affinity = generators.affinity("identity", size)
    copied = rdk_cuda.Draft.without_distribution(
        torch.full((count, 0), 0), seeds=torch.arange(count), positions=0
    )
    rows = row.expand(count, 1, size)
    for limits in each:
        for temperature in temperatures:
            found = rdk_cuda.verify(
                rows, copied, affinity, temperature, logprobs="processed", **limits
            )
            z = row / temperature
            threshold = truncation.threshold(z, truncation.Limits(**limits))
            kept = z >= threshold
            assert kept_columns in (None, int(kept.sum()))
            assert kept[found.tokens].all()
            assert len(found.tokens.unique()) > 1 or name in ("the last bit", "one finite value")
            log_p = z.double().masked_fill(~kept, -math.inf).log_softmax(0)[found.tokens]
            torch.testing.assert_close(found.logprobs.double(), log_p, rtol=0, atol=0.1 / size)
            dtypes = {"top_k": torch.int32}
            given = {n: torch.tensor([x], dtype=dtypes.get(n)) for n, x in limits.items()}
            assert float(thresholds(row[None], temperature, **given)) == float(threshold)


def thresholds(z: Tensor, temperature: float = 1.0, **limits: Tensor) -> Tensor:
    """Those of drafts whose logits are these rows."""
    affinity, rows = generators.affinity("identity", z.shape[1]), torch.arange(z.shape[0])
    scale = torch.full((z.shape[0],), temperature)
    stats: Tensor = torch.ops.rdk.draft(z, scale, rows, rows, *affinity.by_draft, **limits)[1]
    return stats[:, -1]


def expected(rows: Tensor, top_p: Tensor) -> Tensor:
    each = zip(rows, top_p.tolist(), strict=True)
    return torch.tensor([truncation.threshold(z, truncation.Limits(top_p=p)) for z, p in each])


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_masses_are_those_of_the_contract_to_the_last_unit() -> None:
    """The next float32 of top_p decides between two values, if the second one's mass is exact."""
    random, size = Random(7), 60
    rows, given = [], []
    for _ in range(100):
        first, x = random.randrange(1, 4), torch.tensor(random.uniform(-6.0, -0.1))
        row = torch.cat([torch.zeros(first), x.expand(size - first)])
        whole = first * 2.0**40
        share = torch.tensor(whole / (whole + (size - first) * int(truncation.masses(x))))
        rows += [row, row]
        given += [share.nextafter(torch.tensor(0.0)), share]
    z, top_p = torch.stack(rows), torch.stack(given)
    assert torch.equal(thresholds(z, top_p=top_p), expected(z, top_p))


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_a_share_between_two_masses_is_rounded_up() -> None:
    """Of 2^40 and 2^16 + 1, all but 2^-24 is 2^40 and 0.996."""
    values = torch.linspace(-16.6356, -16.6355, 100)
    least = values[truncation.masses(values) == 2**16 + 1][0]
    z, top_p = torch.stack([torch.tensor(0.0), least])[None], torch.tensor([1 - 2.0**-24])
    assert thresholds(z, top_p=top_p) == expected(z, top_p) == least


@pytest.mark.fast_in_the_emulator
@pytest.mark.usefixtures("device")
def test_the_lowest_numbers_are_told_apart() -> None:
    lowest = torch.finfo(torch.float32).min
    values = [0.0, lowest * 0.999, lowest * 0.9999, lowest, -math.inf, -math.inf]
    z = torch.tensor(values).expand(5, -1).contiguous()
    found = thresholds(z, top_k=torch.arange(1, 6, dtype=torch.int32))
    assert found.tolist() == [*z[0, :4].tolist(), -math.inf]


# Where bounds on masses cannot say which columns top-p keeps, the masses themselves do.

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


def edge(row: Tensor, share: float, steps: int) -> float:
    """So many floats from the share of all masses that the columns down to about `share` of them
    have: of a thousand such shares, the one that float32 says best. No sum is as close to it."""
    running = truncation.masses(row.sort(descending=True).values - row.max()).cumsum(0)
    shares = running.double() / int(running[-1])
    first = int((shares < share).sum())
    near = shares[max(0, first - 500) : first + 500]
    found = near[(near.float().double() - near).abs().argmin()].float()
    for _ in range(abs(steps)):
        found = found.nextafter(torch.tensor(math.copysign(9.0, steps)))
    return float(found)


@pytest.mark.parametrize("shape", ["flat", "nearly flat", "peaked", "one as heavy as the others"])
def test_top_p_next_to_an_edge_keeps_what_the_masses_say(shape: str) -> None:
    z, shares = rows_of(shape), torch.rand(ROWS, generator=generators.generator(4)) * 0.9 + 0.05
    each = enumerate(zip(z, shares.tolist(), strict=True))
    top_p = torch.tensor([edge(row, share, STEPS[i % len(STEPS)]) for i, (row, share) in each])
    assert torch.equal(thresholds(z, top_p=top_p), expected(z, top_p))
