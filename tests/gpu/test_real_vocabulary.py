"""A real model's vocabulary on the device."""

from __future__ import annotations

import pytest

from tests.reference import test_real_vocabulary as on_cpu
from tests.reference.test_real_vocabulary import *  # noqa: F403

pytestmark = [on_cpu.pytestmark, pytest.mark.usefixtures("on_device")]
