"""The vector arithmetic of the CPU operators, one instruction set at a time.

All of them give the same bits (docs/design.md, "To the bit"), exp is right to one unit in the last
place, and no file is compiled such that a machine without its instructions would stop in it.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rdk_cuda.reference import truncation
from tests import generators

from .arithmetic import CHUNK, DTYPES, Arithmetic

COUNTS = (1, 2, 15, 16, 17, 31, 100, 1023, 1024)

# exp on the CPU: at most this many units in the last place from the truth, down to the smallest
# normal number. Measured over every 7th float: 0.98 (torch.exp: 0.56).
EXP_UNITS = 1.0
# ln(2^-126.5): smaller results are 0.
FLUSHED_BELOW = -126.5 * math.log(2)


def bits(value: float | Tensor) -> Tensor:
    """As integers; all NaN are one."""
    tensor = torch.as_tensor(value, dtype=torch.float32)
    return torch.where(tensor.isnan(), torch.tensor(math.nan), tensor).view(torch.int32)


def assert_all_same(results: list[tuple[float | Tensor, ...]]) -> None:
    for other in results[1:]:
        for actual, expected in zip(other, results[0], strict=True):
            assert torch.equal(bits(actual), bits(expected))


def misaligned(values: Tensor, by: int) -> Tensor:
    """The same values, so many elements away from an aligned address."""
    room = values.new_zeros(values.numel() + 64)
    begin = (-room.data_ptr() % 64) // room.element_size() + by
    room[begin : begin + values.numel()] = values
    return room[begin : begin + values.numel()]


def some_logits(count: int, dtype: torch.dtype) -> Tensor:
    values = generators.logits(1, count, seed=count, dtype=dtype, scale=5.0, forbidden=0.1)
    return values[0]


# --------------------------------------------------------------------------------------------- exp


def exponentials(arithmetic: Arithmetic, x: Tensor) -> Tensor:
    return torch.cat([arithmetic.exponentiate(part)[1] for part in x.split(1 << 22)])


def every(step: int, low: float, high: float) -> Tensor:
    """Every step-th negative float between two negative ones, as they lie in the number line."""
    ends = torch.tensor([high, low]).view(torch.int32).tolist()
    return torch.arange(ends[0], ends[1], step, dtype=torch.int32).view(torch.float32)


def test_exp_and_masses_are_those_of_the_reference_to_the_bit(
    arithmetics: list[Arithmetic],
) -> None:
    """Membership in a truncated row depends on them (DESIGN section 4, "Truncation")."""
    x = torch.cat([every(30011, -90.0, -1e-30), torch.tensor([0.0, -math.inf])])
    expected = truncation.exponential(x)
    masses = truncation.masses(x)
    for arithmetic in arithmetics:
        assert torch.equal(bits(exponentials(arithmetic, x)), bits(expected))
        for some in torch.arange(x.numel()).split(CHUNK)[::7]:
            for threshold in (-math.inf, -20.0, -0.5):
                kept = some[(x[some] >= threshold) & (x[some] > -math.inf)]
                found = arithmetic.measure(x[some], expected[some], max(threshold, -1e30))
                assert found == (kept.numel(), int(masses[kept].sum()))


@pytest.mark.ci
def test_exp_is_right_to_a_unit_in_the_last_place(arithmetics: list[Arithmetic]) -> None:
    x = torch.cat([every(97, math.log(2**-126), -1e-30), torch.linspace(0, 88, 100_001)])
    exact = x.double().exp()
    _, exponent = torch.frexp(exact)
    unit = torch.ldexp(torch.ones_like(exact), exponent - 24)
    for arithmetic in arithmetics:
        error = (exponentials(arithmetic, x).double() - exact).abs() / unit
        worst = int(error.argmax())
        assert error[worst] <= EXP_UNITS, f"{arithmetic.name}: {error[worst]} at {x[worst]}"


def test_exp_of_large_and_missing_numbers(arithmetics: list[Arithmetic]) -> None:
    x = torch.tensor([0.0, -0.0, -math.inf, -1e38, -104.0, -88.0, 89.0, 1e38, math.inf, math.nan])
    expected = torch.tensor([1.0, 1.0, 0, 0, 0, 0, math.inf, math.inf, math.inf, math.nan])
    for arithmetic in arithmetics:
        assert torch.equal(bits(arithmetic.exponentiate(x)[1]), bits(expected))


def test_exp_below_the_normal_numbers_is_right_or_zero(arithmetics: list[Arithmetic]) -> None:
    x = every(1, -88.0, math.log(2**-126))
    exact = x.double().exp()
    for arithmetic in arithmetics:
        actual = exponentials(arithmetic, x).double()
        flushed = x.double() < FLUSHED_BELOW
        assert (actual[flushed] == 0).all()
        assert ((actual - exact).abs()[~flushed] <= 2.0**-149).all()


# ---------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_half_precision_logit_is_read_as_torch_reads_it(
    arithmetics: list[Arithmetic], dtype: torch.dtype
) -> None:
    values = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    for arithmetic in arithmetics:
        read = torch.cat([arithmetic.scale(part)[1] for part in values.split(CHUNK)])
        assert torch.equal(bits(read), bits(values.float()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", COUNTS)
def test_a_chunk_has_the_same_bits_everywhere(
    arithmetics: list[Arithmetic], count: int, dtype: torch.dtype
) -> None:
    bias = generators.logits(1, count, seed=1, forbidden=0.1)[0]
    values = some_logits(count, dtype)
    for temperature in (1.0, 0.7, 1e-3, 3e38):
        for added, only_masks in ((None, False), (bias, False), (bias, True)):
            results: list[tuple[float | Tensor, ...]] = []
            for arithmetic in arithmetics:
                for by in (0, 1, 3):
                    largest, z = arithmetic.scale(
                        misaligned(values, by), temperature, added, only_masks
                    )
                    shift = largest if largest > -math.inf else 0.0
                    results.append((largest, z, *arithmetic.exponentiate(z, shift)))
            assert_all_same(results)
            _, z, total, weights = results[0]
            expected = values.float() / temperature
            if added is not None:
                expected += torch.where(added > -math.inf, 0.0, added) if only_masks else added
            assert torch.equal(bits(z), bits(expected))
            assert total == pytest.approx(float(torch.as_tensor(weights).double().sum()), rel=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bad_logit_anywhere_in_a_chunk_is_noticed(
    arithmetics: list[Arithmetic], dtype: torch.dtype
) -> None:
    for arithmetic in arithmetics:
        for place in (0, 5, 16, 30, 32):
            for bad, temperature in ((math.nan, 1.0), (math.inf, 1.0), (-6e4, 1e-38)):
                values = torch.zeros(33, dtype=dtype)
                assert arithmetic.scale(values, temperature)[0] == 0
                values[place] = bad
                assert math.isnan(arithmetic.scale(values, temperature)[0])


def test_wider_instructions_stay_in_their_own_files(compiled: Path) -> None:
    """A shared inline function compiled for AVX-512 could be the copy that the linker keeps.

    So each file defines one symbol that others see, its table, and none that is weak.
    """
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    objects = sorted(compiled.glob("arithmetic_*.o"))
    assert len(objects) == 3
    for path in objects:
        result = subprocess.run(
            ["nm", "-C", "--defined-only", "--extern-only", path],
            check=True,
            capture_output=True,
            text=True,
        )
        symbols = [line.split(maxsplit=2)[2] for line in result.stdout.splitlines()]
        assert all(name.endswith("Arithmetic") for name in symbols), symbols
        assert len(symbols) <= 1
