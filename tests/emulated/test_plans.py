"""What plans ask of a GPU is what it has: shared memory, blocks at once, workspace."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from .driver_rules import (
    GPUS,
    Driver,
    Gpu,
    resident_blocks,
)
from .emulated_operators import emulator as operators_emulator

MIB = 2**20
VOCABULARIES = [32_000, 50_257, 128_256, 151_936, 200_064, 256_000, 262_144]
ROWS = [1, 64, 132, 600]
DRAFT_SIZES = [1, 2_000, 8_000, 12_288, 24_000, 32_000, 40_000, 58_100, 128_256, 262_144]
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def plans() -> ModuleType:
    return operators_emulator()


def assert_accepted(gpu: Gpu, plan: Plan) -> None:
    """By a driver that has seen no launch before."""
    driver = Driver(gpu.opt_in)
    if plan["allowed_bytes"] > 0:
        driver.set_attribute(plan["kernel"], plan["allowed_bytes"])
    driver.launch(plan["kernel"], plan["shared_bytes"])


def assert_covers(plan: Plan, rows: int, target_size: int) -> None:
    assert plan["tile"] >= 1
    assert (plan["tiles"] - 1) * plan["tile"] < target_size <= plan["tiles"] * plan["tile"]
    assert plan["blocks"] == -(-rows // plan["group"]) * plan["tiles"]


# --------------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize("dynamic", [0, 16], ids=["static", "dynamic"])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("target_size", VOCABULARIES)
@pytest.mark.parametrize("architecture", GPUS)
def test_redistribute_asks_for_what_the_driver_gives(
    plans: ModuleType, architecture: str, target_size: int, rows: int, dynamic: int
) -> None:
    gpu = GPUS[architecture]
    for draft_size in DRAFT_SIZES:
        plan = plans.plan_redistribute(gpu.machine, rows, draft_size, target_size, dynamic)
        assert_accepted(gpu, plan)
        assert_covers(plan, rows, target_size)


@pytest.mark.parametrize("architecture", GPUS)
def test_redistribute_at_the_edges_of_shared_memory(plans: ModuleType, architecture: str) -> None:
    """One row of 12,288 logits is 48 KiB; others come within bytes of the opt-in limit."""
    gpu = GPUS[architecture]
    edges = [12_288, gpu.opt_in // 4, gpu.opt_in // 8, gpu.opt_in // 16]
    sizes = [size for edge in edges for size in range(edge - 70, edge + 3)]
    for draft_size in [*sizes, *range(58_081, 58_113)]:
        for rows in (1, 600):
            for dynamic in (0, 16):
                plan = plans.plan_redistribute(gpu.machine, rows, draft_size, 128_256, dynamic)
                assert_accepted(gpu, plan)
                assert_covers(plan, rows, 128_256)


@pytest.mark.parametrize("dynamic", [0, 16])
def test_the_largest_drafter_of_all_still_has_a_launch(plans: ModuleType, dynamic: int) -> None:
    most = 2**28
    for gpu in GPUS.values():
        for rows in ROWS:
            plan = plans.plan_redistribute(gpu.machine, rows, most, most, dynamic)
            assert not plan["shared_weights"]
            assert_accepted(gpu, plan)
            assert_covers(plan, rows, most)


@pytest.mark.parametrize("architecture", GPUS)
def test_the_other_operators_ask_for_what_the_driver_gives(
    plans: ModuleType, architecture: str
) -> None:
    gpu = GPUS[architecture]
    for rows in ROWS:
        assert_accepted(gpu, plans.plan_draft(gpu.machine, rows, 32_000, 16))
        assert_accepted(gpu, plans.plan_gather_logits(gpu.machine, rows, 8_000))
        assert_accepted(gpu, plans.plan_verify(gpu.machine, rows, 5 * rows, 5, 32_000, 128_256))


def test_tiles_shrink_before_weights_leave_shared_memory(plans: ModuleType) -> None:
    """By the fewest tiles that fit, and at most to twice those that marks need in any case."""
    h100, a40 = GPUS["sm_90a"].machine, GPUS["sm_86"].machine

    def chosen(machine: tuple[int, int], draft_size: int, target_size: int) -> tuple[Any, ...]:
        plan = plans.plan_redistribute(machine, 132, draft_size, target_size, 16)
        return plan["shared_weights"], plan["group"], plan["tiles"]

    assert chosen(h100, 24_000, 128_256) == (True, 1, 1)
    assert chosen(h100, 32_000, 128_256) == (True, 1, 2)
    assert chosen(h100, 32_000, 256_000) == (True, 1, 3)
    assert chosen(h100, 50_000, 256_000) == (False, 1, 2)
    assert chosen(a40, 8_000, 128_256) == (True, 1, 2)
    assert chosen(a40, 24_000, 128_256) == (False, 1, 2)


def test_rows_stay_in_groups_where_smaller_tiles_allow_it(plans: ModuleType) -> None:
    def chosen(draft_size: int, dynamic: int) -> tuple[Any, ...]:
        machine = GPUS["sm_90a"].machine
        plan = plans.plan_redistribute(machine, 600, draft_size, 128_256, dynamic)
        return plan["shared_weights"], plan["group"], plan["tiles"]

    assert chosen(14_000, 0) == (True, 4, 1)
    assert chosen(2_000, 16) == (True, 2, 2)
    assert chosen(14_000, 16) == (True, 1, 1)


# --------------------------------------------------------------------------------- blocks at once


def assert_one_wave(architecture: str, plan: Plan) -> None:
    gpu = GPUS[architecture]
    shape = (plan["threads"], plan["shared_bytes"])
    assert plan["blocks"] <= resident_blocks(gpu, architecture, plan["kernel"], *shape)


@pytest.mark.parametrize("architecture", GPUS)
def test_blocks_that_share_work_all_run_at_once(plans: ModuleType, architecture: str) -> None:
    """Of a row, a sequence or a gather: splitting further would only add a second wave."""
    machine = GPUS[architecture].machine
    splits: dict[str, set[int]] = {"draft": set(), "verify": set(), "gather_logits": set()}
    for count in range(1, 2 * machine[0] + 2):
        for name, plan in {
            "draft": plans.plan_draft(machine, count, 128_256),
            "verify": plans.plan_verify(machine, count, 4 * count, 4, 32_000, 128_256),
            "gather_logits": plans.plan_gather_logits(machine, count, 8_000),
        }.items():
            splits[name].add(plan["splits"])
            if plan["splits"] > 1:
                assert_one_wave(architecture, plan)
    for name, seen in splits.items():
        assert {1, 2, 3} <= seen if name != "draft" else 4 in seen, name


@pytest.mark.parametrize("architecture", GPUS)
def test_blocks_of_draft_spread_evenly(plans: ModuleType, architecture: str) -> None:
    """Four to a multiprocessor: none has a fifth while another waits."""
    machine = GPUS[architecture].machine
    for rows in range(1, machine[0]):
        plan = plans.plan_draft(machine, rows, 128_256)
        assert rows < plan["blocks"] <= 4 * machine[0]


@pytest.mark.parametrize("architecture", GPUS)
def test_tiles_of_redistribute_run_at_once_unless_marks_need_more(
    plans: ModuleType, architecture: str
) -> None:
    multiprocessors, opt_in = GPUS[architecture].machine
    for rows in range(1, 2 * multiprocessors):
        plan = plans.plan_redistribute((multiprocessors, opt_in), rows, 8_000, 128_256)
        if plan["tiles"] > 1:
            assert plan["blocks"] <= multiprocessors
            assert_one_wave(architecture, plan)


# ------------------------------------------------------------------------------------- workspace


def verify_bytes(plans: ModuleType, sequences: int, num_drafts: int, max_draft: int) -> Plan:
    machine = GPUS["sm_90a"].machine
    plan: Plan = plans.plan_verify(
        machine, sequences, num_drafts, max_draft, 32_000, 128_256, dynamic_size=16, rank=2
    )
    return plan


def test_the_workspace_of_verify_does_not_grow_with_a_careless_max_draft(
    plans: ModuleType,
) -> None:
    """A bound that no draft reaches, such as N, or the largest there is."""
    for sequences in (1, 8, 64, 131, 132, 600, 4096):
        drafts = 8 * sequences
        for max_draft in (8, 64, drafts, 100 * drafts, 2**31 - 2):
            plan = verify_bytes(plans, sequences, drafts, max_draft)
            of_the_logits = (drafts + sequences) * 128_256 * 2
            assert plan["workspace_bytes"] <= max(64 * MIB, of_the_logits // 64)


def test_sensible_batches_are_split_whatever_their_workspace(plans: ModuleType) -> None:
    """The bound is none for a few long drafts, nor for many of some length."""
    for sequences, length in ((1, 512), (8, 128), (64, 64), (131, 64)):
        plan = verify_bytes(plans, sequences, sequences * length, length)
        assert plan["splits"] > 1


def test_a_block_in_order_keeps_the_sums_of_one_step(plans: ModuleType) -> None:
    one = verify_bytes(plans, 600, 600, 1)
    assert one["splits"] == 1
    assert verify_bytes(plans, 600, 600 * 64, 64)["workspace_bytes"] == one["workspace_bytes"]
