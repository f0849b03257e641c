"""What does not fit is refused on the device as on the CPU."""

from __future__ import annotations

import pytest

from tests.reference.test_refusals import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
