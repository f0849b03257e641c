"""`rdk::step_keys` gives the keys that the reference gives."""

from __future__ import annotations

import pytest
import torch

from rdk_cuda import reference

pytestmark = pytest.mark.usefixtures("device")


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 1000])
def test_every_seed_and_position_to_the_bit(count: int) -> None:
    random = torch.Generator().manual_seed(0)
    seeds, positions = torch.randint(-(2**63), 2**63 - 1, (2, count), generator=random)
    actual = torch.ops.rdk.step_keys(seeds, positions)
    assert torch.equal(actual, reference.step_keys(seeds, positions))
