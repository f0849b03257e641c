"""The step_seeds kernel gives the keys that the reference gives."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_step_seeds import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
