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
    "test_the_direct_pass_is_what_the_reference_does": ("small-batches",),
    "test_a_residual_without_mass_is_drawn_from_p": ("small-batches",),
    # Minutes in the emulator, whose other tests show of a kernel what these do.
    "test_four_thousand_sequences": tuple(MACHINES),
    "test_four_thousand_sequences_by_block": tuple(MACHINES),
    # What stands for the operators cannot be compiled: tests/gpu/test_compile.py.
    "test_a_step_of_the_python_layer_compiles_into_one_graph": ("cuda",),
}
# What the fast tests run on the emulated machines: each operator with every dtype, and each of its
# ways to end. The other tests, kinds and sizes are slow there.
FAST_IN_THE_EMULATOR: dict[str, dict[str, tuple[object, ...]]] = {
    "test_every_affinity_and_dtype": {"kind": ("mixed-2",)},
    "test_every_dtype_and_width": {"width": (257,)},
    "test_every_seed_and_position_to_the_bit": {"shape": ((257,),)},
    "test_temperature_zero_is_greedy": {"kind": ("virtual",)},
    "test_temperature_zero_is_one_hot": {},
    "test_a_greedy_target_returns_what_greedy_decoding_returns": {"kind": ("virtual",)},
    "test_a_draft_token_of_minus_one_ends_the_draft": {},
    "test_an_unused_dynamic_column_is_not_read": {"token": (-1,)},
    "test_a_drafted_id_out_of_range_is_rejected": {"token": (2500,)},
    "test_stats_passed_or_recomputed": {},
    "test_every_dtype_and_vocabulary": {"size": (2500,)},
    "test_temperature_zero_walks_along_the_argmax": {},
    "test_of_siblings_with_one_token_the_first_wins": {},
    "test_a_parent_that_is_not_an_earlier_node_has_no_such_child": {},
    "test_every_backend_gives_the_tokens_of_masking_first": {},
    "test_a_row_with_nothing_allowed_has_no_distribution": {},
    "test_what_is_not_allowed_is_not_seen": {},
    "test_truncated_drafts_are_those_of_the_reference": {},
    "test_ties_at_a_threshold_all_stay": {},
    "test_a_row_with_one_finite_value_gives_it": {},
    "test_values_that_differ_in_their_last_bit_are_told_apart": {},
    "test_log_probabilities_alone": {},
    "test_every_affinity_and_dtype_by_block": {"kind": ("mixed-2",)},
    "test_a_greedy_target_decides_by_block_as_by_token": {"draft_temperature": (0.6,)},
    "test_what_ends_a_draft": {},
    "test_a_target_row_without_distribution_ends_the_draft": {},
    "test_masses_are_those_of_the_contract_to_the_last_unit": {},
    "test_the_lowest_numbers_are_told_apart": {},
    "test_zeros_of_either_sign_are_equal": {},
    "test_zeros_of_either_sign_have_their_mass_where_another_limit_is_zero": {},
    "test_a_row_of_drafts_that_is_not_truncated_has_the_same_bits": {},
    "test_a_row_of_drafts_has_the_bits_that_it_has_alone": {},
    "test_truncated_trees_are_walked_as_by_the_reference": {},
    "test_a_tree_has_the_bits_that_it_has_alone": {},
    "test_a_bad_limit_leaves_a_row_of_drafts_without_a_distribution": {
        "bad": ({"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.5})
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not left_out(item)]
    for item in items:
        if device_of(item) in MACHINES and not fast_in_the_emulator(item):
            item.add_marker(pytest.mark.slow)


def parameters(item: pytest.Item) -> dict[str, object]:
    return getattr(getattr(item, "callspec", None), "params", {})


def device_of(item: pytest.Item) -> str:
    given = parameters(item)
    return str(given.get("device", given.get("cpu_or_cuda", "")))


def left_out(item: pytest.Item) -> bool:
    device = device_of(item)
    devices = LEFT_OUT.get(getattr(item, "originalname", ""), ())
    return device in devices or (device == "cuda" and PLACE in devices)


def fast_in_the_emulator(item: pytest.Item) -> bool:
    chosen = FAST_IN_THE_EMULATOR.get(getattr(item, "originalname", ""))
    given = parameters(item)
    return chosen is not None and all(given[name] in fast for name, fast in chosen.items())


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """The reference makes thousands of tiny tensors; waking other threads for them is slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
