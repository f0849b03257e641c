"""The gather_logits kernel is a few rows of a matrix product, accumulated in float32."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_gather_logits import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
