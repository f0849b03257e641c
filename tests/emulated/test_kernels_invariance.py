"""A row's bits do not depend on what is computed beside it: neighbours, slots, padding, strides."""

from __future__ import annotations

import pytest

from tests.reference.test_invariance import *  # noqa: F403

pytestmark = pytest.mark.usefixtures("kernels")
