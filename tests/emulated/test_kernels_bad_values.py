"""Bad values have the same defined results on a GPU, and no thread reads or hangs on them."""

from __future__ import annotations

import pytest

from tests.reference.test_bad_values import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("kernels")
