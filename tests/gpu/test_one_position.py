"""One speculative position on the device: drafts have the frequencies of q, outputs those of p."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="scipy is not installed: no chi-square tests")

from tests.statistics.test_one_position import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("on_device")
