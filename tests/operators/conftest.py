from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from tests.devices import MACHINES, PLACE

# No deadline: the first example of a test pays for imports. The same examples in every run.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

LEFT_OUT = {
    # Thousands of rows: a large batch on either machine, so once is enough.
    "test_a_token_of_the_smallest_mass_can_be_drawn": ("small-batches",),
    "test_ten_thousand_draws": ("small-batches",),
    "test_four_thousand_sequences": ("small-batches",),
    "test_the_direct_pass_is_what_the_reference_does": ("small-batches",),
    "test_a_residual_without_mass_is_drawn_from_p": ("small-batches",),
    # What the kernels are compared with.
    "test_the_cpu_operator_draws_the_same": ("cpu",),
    "test_the_cpu_operator_decides_the_same": ("cpu",),
    # The CPU divides.
    "test_a_logit_is_multiplied_by_the_reciprocal_of_its_temperature": ("cpu",),
    # What stands for the operators cannot be compiled: tests/gpu/test_compile.py.
    "test_a_step_of_the_python_layer_compiles_into_one_graph": ("cuda",),
}
# Whose many rows take the emulator seconds each.
SLOW_IN_THE_EMULATOR = {
    "test_a_draft_row_without_distribution",
    "test_a_one_hot_draft",
    "test_a_residual_without_mass_is_drawn_from_p",
    "test_a_token_of_the_smallest_mass_can_be_drawn",
    "test_a_token_that_the_target_forbids_is_never_put_out",
    "test_any_batch",
    "test_large_vocabularies",
    "test_only_the_first_max_draft_tokens_are_considered",
    "test_ten_thousand_draws",
    "test_the_cpu_operator_decides_the_same",
    "test_the_direct_pass_is_what_the_reference_does",
    "test_the_number_of_threads_changes_nothing",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not left_out(item)]
    for item in items:
        name = getattr(item, "originalname", "")
        if name in SLOW_IN_THE_EMULATOR and device_of(item) in MACHINES:
            item.add_marker(pytest.mark.slow)


def device_of(item: pytest.Item) -> str:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return str(parameters.get("device", parameters.get("cpu_or_cuda", "")))


def left_out(item: pytest.Item) -> bool:
    device = device_of(item)
    devices = LEFT_OUT.get(getattr(item, "originalname", ""), ())
    return device in devices or (device == "cuda" and PLACE in devices)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """The reference makes thousands of tiny tensors; waking other threads for them is slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
