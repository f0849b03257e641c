"""The random numbers of the kernels are those of DESIGN section 5."""

from __future__ import annotations

import pytest

from tests.reference.test_philox import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
