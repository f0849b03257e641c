from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# No deadline: the first example of a test pays for imports. The same examples in every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """The reference makes thousands of tiny tensors; waking other threads for them is slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
