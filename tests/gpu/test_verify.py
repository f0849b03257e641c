"""The verify kernel decides what the reference decides."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_verify import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
