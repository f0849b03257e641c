from __future__ import annotations

# Autouse.
from tests.operators.conftest import _one_thread  # noqa: F401
