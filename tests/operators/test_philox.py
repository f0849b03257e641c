"""The random numbers are Philox4x32-10, keyed and cut into uniforms as DESIGN section 5 says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

INT64 = st.integers(-(2**63), 2**63 - 1)

# Random123, examples/kat_vectors, philox4x32 with 10 rounds: counter, key, output.
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def as_int64(low: int, high: int) -> int:
    value = low + (high << 32)
    return value - (1 << 64) if value >> 63 else value


@pytest.mark.parametrize(("counter", "key", "words"), PUBLISHED)
def test_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    seed, position = as_int64(*key), as_int64(*counter[:2])
    assert reference.philox(seed, position, *counter[2:]) == words
    tensors = reference.philox(torch.tensor(seed), torch.tensor(position), *counter[2:])
    assert tuple(int(word) for word in tensors) == words


@given(INT64, INT64)
def test_step_keys_are_the_first_two_words_of_the_step_stream(seed: int, position: int) -> None:
    low, high, _, _ = reference.philox(seed, position, reference.STEP, 0)
    seeds, positions = torch.tensor([seed]), torch.tensor([position])
    assert int(reference.step_keys(seeds, positions)) == as_int64(low, high)
    assert int(torch.ops.rdk.step_keys(seeds, positions)) == as_int64(low, high)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (99, 7), (5000,)])
def test_step_keys_take_any_shape(shape: tuple[int, ...]) -> None:
    random = torch.Generator().manual_seed(1)
    seeds = torch.randint(-(2**63), 2**63 - 1, shape, generator=random)
    positions = torch.randint(0, 2**40, shape, generator=random)
    actual = torch.ops.rdk.step_keys(seeds, positions)
    assert actual.shape == shape
    assert torch.equal(actual, reference.step_keys(seeds, positions))


def test_a_uniform_is_never_one() -> None:
    assert reference.uniform(0xFFFFFFFF) == 1 - 2**-24
    assert reference.uniform(0xFF) == 0
