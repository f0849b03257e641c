from __future__ import annotations

# Autouse.
from tests.reference.conftest import _one_thread  # noqa: F401
