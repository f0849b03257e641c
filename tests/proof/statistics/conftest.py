"""Tables of a few entries: waking other threads for them costs more than it saves."""

# Autouse.
from tests.operators.conftest import _one_thread  # noqa: F401
