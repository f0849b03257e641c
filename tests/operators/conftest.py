from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from tests.devices import MACHINES, PLACE

# No deadline: the first example of a test pays for imports. The same examples in every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

# Any batch is a small one there: everything is split, so most of a kernel runs.
FAST_MACHINE = "small-batches"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The emulator is slow, so a test says what of it runs there, and when.

    `fast_in_the_emulator(name=values)`: with these parameters `make test` runs it on one machine,
    with one dtype, and `.ci/run` on both with all. What it does not name runs at night, as do the
    tests without this mark. `not_on(devices)` leaves it out there.
    """
    items[:] = [item for item in items if not left_out(item)]
    for item in items:
        if device_of(item) in MACHINES and (tier := tier_in_the_emulator(item)):
            item.add_marker(tier)


def parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})


def device_of(item: pytest.Item) -> str:
    given = parameters(item)
    return str(given.get("device", given.get("cpu_or_cuda", "")))


def left_out(item: pytest.Item) -> bool:
    device, mark = device_of(item), item.get_closest_marker("not_on")
    return mark is not None and (device in mark.args or (device == "cuda" and PLACE in mark.args))


def tier_in_the_emulator(item: pytest.Item) -> str | None:
    mark, given = item.get_closest_marker("fast_in_the_emulator"), parameters(item)
    if mark is None or any(given[name] not in fast for name, fast in mark.kwargs.items()):
        return "night"
    fast = given.get("dtype", torch.bfloat16) == torch.bfloat16
    return None if fast and device_of(item) == FAST_MACHINE else "ci"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """The reference makes thousands of tiny tensors; waking other threads for them is slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
