"""AddressSanitizer and UBSan see a stray index of a kernel. That the operators' kernels have none,
and that right ones are clean, is in test_kernels_memory.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import EMULATOR_KERNELS
from .module_builder import build_module, run_sanitized

pytestmark = pytest.mark.night

WRONG = """
import sys, numpy as np, emulator_kernels as emulator
misuse = getattr(emulator.Misuse, sys.argv[1])
emulator.misuse(misuse, np.empty(64, dtype=np.float32), 1, 64, 4 * 64)
"""


@pytest.fixture(scope="module")
def sanitized_kernels() -> Path:
    return build_module("emulator_kernels", EMULATOR_KERNELS, sanitize=True)


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
