"""Bad values have their defined results on the device."""

from __future__ import annotations

import pytest

from tests.reference.test_bad_values import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
