"""The draft kernel draws what the reference draws."""

from __future__ import annotations

import pytest

from tests.emulated.test_kernels_draft import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
