"""The step_keys kernel gives the keys that the reference gives."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_step_keys import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
