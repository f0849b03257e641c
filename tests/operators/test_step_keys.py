"""`rdk::step_keys`, and the random numbers: Philox4x32-10, keyed as DESIGN section 5 says."""

from __future__ import annotations

import pytest
import torch

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference

# Random123, examples/kat_vectors, philox4x32 with 10 rounds: counter, key, output.
ONES = 0xFFFFFFFF
PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
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


def test_a_uniform_is_never_one() -> None:
    assert reference.uniform(ONES) == 1 - 2**-24
    assert reference.uniform(0xFF) == 0


@pytest.mark.parametrize("branch", [0, 1, 77, 2**24 - 1])
def test_a_branch_stands_above_the_purpose_in_the_counters_third_word(branch: int) -> None:
    assert reference.philox(5, 6, 3, 7, branch) == reference.philox(5, 6, 3 + 256 * branch, 7)
    assert reference.philox(5, 6, 3, 7, branch + 2**24) == reference.philox(5, 6, 3, 7, branch)


@pytest.mark.fast_in_the_emulator(stage=(1, 2**32 - 1))
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("stage", [0, 1, 2, 2**31, 2**32 - 1])
def test_a_stage_is_the_try_of_the_steps_stream(stage: int) -> None:
    seeds, positions = torch.arange(-150, 150) * 2**53, torch.arange(300) * 2**40
    actual = torch.ops.rdk.step_keys(seeds, positions, stage)
    assert torch.equal(actual, reference.step_keys(seeds, positions, stage))
    low, high, _, _ = reference.philox(int(seeds[7]), int(positions[7]), reference.STEP, stage)
    assert actual[7] == as_int64(low, high)
    same = torch.equal(actual, torch.ops.rdk.step_keys(seeds, positions))
    assert same == (stage == 0)


@pytest.mark.fast_in_the_emulator(shape=((257,),))
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (255,), (256,), (257,), (99, 7), (5000,)], ids=str
)
def test_every_seed_and_position_to_the_bit(shape: tuple[int, ...]) -> None:
    """A step's key is the first two words of the step's stream."""
    random = torch.Generator().manual_seed(0)
    seeds, positions = torch.randint(-(2**63), 2**63 - 1, (2, *shape), generator=random)
    if seeds.numel() > 1:
        seeds.view(-1)[:2] = torch.tensor([2**63 - 1, -(2**63)])
    actual = torch.ops.rdk.step_keys(seeds, positions)
    assert actual.shape == shape
    assert torch.equal(actual, reference.step_keys(seeds, positions))
    for pair in list(zip(seeds.flatten(), positions.flatten(), actual.flatten(), strict=True))[:9]:
        seed, position, key = map(int, pair)
        low, high, _, _ = reference.philox(seed, position, reference.STEP, 0)
        assert key == as_int64(low, high)
