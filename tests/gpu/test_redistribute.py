"""The redistribute kernel is as exact as PyTorch's own float32 arithmetic."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_redistribute import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
