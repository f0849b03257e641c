"""Whole speculative decoding loops on the device return the target's distribution."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="scipy is not installed: no chi-square tests")

from tests.statistics.test_decoding_loops import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
