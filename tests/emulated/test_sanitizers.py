"""Kernels run under AddressSanitizer and UBSan, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import EMULATOR_KERNELS
from .module_builder import build_module, run_sanitized

pytestmark = pytest.mark.slow

RIGHT = """
import numpy as np, emulator_kernels as emulator
logits = np.random.default_rng(0).normal(size=(3, 5000)).astype(np.float32)
values = np.arange(1, 201, dtype=np.int32)
expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
for seed in range(4):
    emulator.configure(seed=seed)
    probs, sums = np.empty_like(logits), np.empty_like(values)
    partials, total = np.zeros(256, dtype=np.int32), np.zeros(1, dtype=np.int32)
    emulator.softmax(logits, probs, 1024, True)
    emulator.warp_scan(values, sums, 4, 64)
    emulator.reduction(values, partials, np.zeros(1, dtype=np.uint32), total, 4, 64,
                       emulator.Publication.fence_after_barrier)
    emulator.primitives(np.empty((9, 64), dtype=np.uint32))
    assert np.allclose(probs, expected, rtol=1e-4) and total[0] == values.sum()
    for misuse in ("throws", "barrier_in_branch", "circular_wait"):
        try:
            emulator.misuse(getattr(emulator.Misuse, misuse), probs[0], 2, 1024, 64)
        except (IndexError, emulator.EmulationError):
            assert emulator.live_guards() == 0
        else:
            raise AssertionError(misuse)
print("done")
"""

WRONG = """
import sys, numpy as np, emulator_kernels as emulator
misuse = getattr(emulator.Misuse, sys.argv[1])
emulator.misuse(misuse, np.empty(64, dtype=np.float32), 1, 64, 4 * 64)
"""


@pytest.fixture(scope="module")
def sanitized_kernels() -> Path:
    return build_module("emulator_kernels", EMULATOR_KERNELS, sanitize=True)


def test_right_kernels_are_clean_also_after_errors(sanitized_kernels: Path) -> None:
    result = run_sanitized(sanitized_kernels, RIGHT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "done"


@pytest.mark.parametrize(
    ("misuse", "report"),
    [
        ("dynamic_overrun", "heap-buffer-overflow"),
        ("static_overrun", "global-buffer-overflow"),
        ("global_overrun", "heap-buffer-overflow"),
        ("signed_overflow", "signed integer overflow"),
    ],
)
def test_a_stray_index_is_reported_with_its_line(
    sanitized_kernels: Path, misuse: str, report: str
) -> None:
    result = run_sanitized(sanitized_kernels, WRONG, misuse)
    assert result.returncode != 0
    assert report in result.stderr
    assert "emulator_kernels.cu:" in result.stderr
