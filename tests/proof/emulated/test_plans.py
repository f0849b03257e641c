"""What plans ask of a GPU is what it has: shared memory, blocks at once, workspace."""

from __future__ import annotations

import itertools
import json
from types import ModuleType
from typing import Any

import pytest

from . import launches
from .driver_rules import GPUS, Driver, Gpu, resident_blocks
from .emulated_operators import emulator as operators_emulator

MIB = 2**20
MOST = 2**28  # columns
OVERLAP_BYTES = 624  # static ones: what the warps of a row tell each other
THRESHOLD_BYTES = 16_528  # 2048 bins of a count or mass, and what warps tell each other
RING_BYTES = 2 * (2048 + 16)  # two chunks of 16 bits, which may begin within 16 bytes
VOCABULARIES = [32_000, 50_257, 128_256, 151_936, 200_064, 256_000, 262_144]
ROWS = [1, 64, 132, 600]
DRAFT_SIZES = [1, 2_000, 8_000, 12_288, 24_000, 32_000, 40_000, 58_100, 128_256, 262_144]
Plan = dict[str, Any]


@pytest.fixture(scope="module")
def plans() -> ModuleType:
    return operators_emulator()


@pytest.fixture(params=GPUS)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def assert_accepted(gpu: Gpu, plan: Plan) -> None:
    """By a driver that has seen no launch before."""
    driver = Driver(gpu.opt_in)
    if plan["allowed_bytes"] > 0:
        driver.set_attribute(plan["kernel"], plan["allowed_bytes"])
    driver.launch(plan["kernel"], plan["shared_bytes"])


def test_launches_are_those_that_the_documents_show(plans: ModuleType) -> None:
    recorded = json.loads(launches.TABLE.read_text(encoding="utf-8"))
    assert recorded == launches.content(plans), "python -m tests.proof.emulated.launches"


# --------------------------------------------------------------------------------- shared memory


@pytest.mark.parametrize("limits", [False, True], ids=["whole", "limits"])
@pytest.mark.parametrize("dynamic", [0, 16], ids=["static", "dynamic"])
def test_redistribute_asks_for_what_the_driver_gives(
    plans: ModuleType, architecture: str, dynamic: int, limits: bool
) -> None:
    """At usual sizes, and at the edges: one row of 12,288 logits is 48 KiB, others come within
    bytes of the opt-in limit, and the largest drafter of all still has a launch."""
    gpu = GPUS[architecture]
    edges = [12_288, gpu.opt_in // 4, gpu.opt_in // 8, gpu.opt_in // 16]
    near = [size for edge in edges for size in range(edge - 70, edge + 3)]
    near += range(58_081, 58_113)
    usual = [(d, t, r) for d in DRAFT_SIZES for t in VOCABULARIES for r in ROWS]
    for draft_size, target_size, rows in [
        *usual,
        *((size, 128_256, rows) for size in near for rows in (1, 600)),
        *((MOST, MOST, rows) for rows in ROWS),
    ]:
        plan = plans.plan_redistribute(
            gpu.machine, rows, draft_size, target_size, dynamic, limits=limits
        )
        assert_accepted(gpu, plan)
        assert plan["tile"] >= 1
        # The last tile of a cluster may be empty.
        used = plan["tiles"] - plan["cluster"] + 1
        assert (used - 1) * plan["tile"] < target_size <= plan["tiles"] * plan["tile"]
        assert plan["blocks"] == -(-rows // plan["group"]) * plan["tiles"]
        assert draft_size < MOST or not plan["shared_weights"]


def test_the_other_operators_ask_for_what_the_driver_gives(
    plans: ModuleType, architecture: str
) -> None:
    gpu = GPUS[architecture]
    for rows in ROWS:
        for limits in (False, True):
            assert_accepted(gpu, plans.plan_draft(gpu.machine, rows, 32_000, 16, limits=limits))
        assert_accepted(gpu, plans.plan_gather_logits(gpu.machine, rows, 8_000))
        assert_accepted(gpu, plans.plan_verify(gpu.machine, rows, 5 * rows, 5, 32_000, 128_256))
        for draft_size in DRAFT_SIZES:
            plan = plans.plan_overlap(gpu.machine, rows, draft_size, 128_256)
            assert_accepted(gpu, plan)
            assert plan["blocks"] == rows
            assert plan["shared_weights"] == (plan["shared_bytes"] > 0)
            assert plan["shared_weights"] == (4 * draft_size <= gpu.opt_in - OVERLAP_BYTES)
        for target_size in (128_256, 262_144, MOST):
            plan = plans.plan_overlap_backward(gpu.machine, rows, 32_000, target_size)
            assert_accepted(gpu, plan)
            groups = -(-rows // 4)
            assert groups <= plan["blocks"] == groups * plan["splits"] <= 63 * groups
            assert plan["shared_below"] == (plan["shared_bytes"] > 0)
            assert not plan["shared_below"] or plan["shared_bytes"] == -(-target_size // 32) * 16
            assert plan["shared_below"] or target_size > 128_256
        plan = plans.plan_sum_shard(gpu.machine, rows, 3, 63)
        assert_accepted(gpu, plan)
        assert 4 * rows <= plan["blocks"] == 4 * rows * plan["splits"] <= 4 * rows * 8
        plan = plans.plan_verify_shard(gpu.machine, rows)
        assert_accepted(gpu, plan)
        assert plan["blocks"] == rows
        plan = plans.plan_verify_tree(gpu.machine, rows, 128_256)
        assert_accepted(gpu, plan)
        assert plan["workspace_bytes"] == -(-8 * 126 * rows // 16) * 16


def test_a_block_that_searches_for_a_threshold_has_room_for_it(plans: ModuleType) -> None:
    """In `draft` where the rings were, which small blocks have fewer of."""
    for multiprocessors in (1, 132):
        machine = multiprocessors, 227 * 1024, 1
        for limits, least in ((False, 0), (True, THRESHOLD_BYTES)):
            drafted = plans.plan_draft(machine, 8, 32_000, limits=limits)
            assert drafted["shared_bytes"] == max(drafted["threads"] // 32 * RING_BYTES, least)
        verified = plans.plan_verify(machine, 8, 40, 5, 32_000, 128_256)
        walked = plans.plan_verify_tree(machine, 8, 128_256)
        assert min(verified["shared_bytes"], walked["shared_bytes"]) >= THRESHOLD_BYTES


# --------------------------------------------------------------------------------- blocks at once


def assert_one_wave(architecture: str, plan: Plan) -> None:
    gpu = GPUS[architecture]
    shape = (plan["threads"], plan["shared_bytes"])
    assert plan["blocks"] <= resident_blocks(gpu, architecture, plan["kernel"], *shape)


def test_blocks_that_share_work_all_run_at_once(plans: ModuleType, architecture: str) -> None:
    """Of a row, a sequence or a gather: splitting further would only add a second wave."""
    machine = GPUS[architecture].machine
    splits: dict[str, set[int]] = {
        name: set() for name in ("draft", "draft with limits", "verify", "gather_logits")
    }
    for count in range(1, 2 * machine[0] + 2):
        for name, plan in {
            "draft": plans.plan_draft(machine, count, 128_256),
            "draft with limits": plans.plan_draft(machine, count, 128_256, limits=True),
            "verify": plans.plan_verify(machine, count, 4 * count, 4, 32_000, 128_256),
            "gather_logits": plans.plan_gather_logits(machine, count, 8_000),
        }.items():
            splits[name].add(plan["splits"])
            if plan["splits"] > 1:
                assert_one_wave(architecture, plan)
    for name, seen in splits.items():
        assert {1, 2, 3} <= seen if "draft" not in name else 4 in seen, name


def test_blocks_fill_the_gpu_evenly(plans: ModuleType, architecture: str) -> None:
    """Of draft four to a multiprocessor, so that none has a fifth while another waits; tiles of
    redistribute run at once unless marks need more."""
    machine = GPUS[architecture].machine
    for rows in range(1, 2 * machine[0]):
        plan = plans.plan_draft(machine, rows, 128_256)
        assert rows >= machine[0] or rows < plan["blocks"] <= 4 * machine[0]
        plan = plans.plan_redistribute(machine, rows, 8_000, 128_256)
        if plan["tiles"] > 1:
            assert plan["blocks"] <= machine[0]
            assert_one_wave(architecture, plan)


def test_few_drafted_rows_have_clusters_of_blocks_where_there_are_any(
    plans: ModuleType, architecture: str
) -> None:
    """They need no tickets. Of a very long row, more blocks than those read parts."""
    gpu = GPUS[architecture]
    for size, rows in itertools.product((2_000, 32_000, 128_256), (1, 8, 33, 64, 100)):
        plan = plans.plan_draft(gpu.machine, rows, size)
        assert plan["blocks"] == rows * plan["splits"]
        assert plan["splits"] > 1 or size == 2_000 or rows >= gpu.multiprocessors
        assert plan["cluster"] == (plan["splits"] if gpu.cluster > 1 else 1)
        assert plan["cluster"] in (1, 2, 4, 8)
        assert (plan["ticket_bytes"] > 0) == (plan["cluster"] < plan["splits"])
    for rows in (1, gpu.multiprocessors):
        plan = plans.plan_draft(gpu.machine, rows, 262_144)
        assert plan["cluster"] == 1
        assert (plan["ticket_bytes"] > 0) == (rows == 1)


def test_few_trees_of_fixed_nodes_have_a_cluster_each_where_there_are_any(
    plans: ModuleType, architecture: str
) -> None:
    """As many blocks as run at once, with four chunks or more for each. Drawn nodes have none."""
    gpu = GPUS[architecture]
    clusters = []
    for count in range(1, gpu.multiprocessors + 2):
        plan = plans.plan_verify_tree(gpu.machine, count, 128_256)
        assert plan["blocks"] == count * plan["cluster"]
        assert plan["ticket_bytes"] == 0
        assert_one_wave(architecture, plan)
        clusters.append(plan["cluster"])
        for other in ({"drawn": True}, {"by_block": True}):
            plan = plans.plan_verify_tree(gpu.machine, count, 128_256, **other)
            assert (plan["blocks"], plan["cluster"]) == (count, 1)
    assert clusters == sorted(clusters, reverse=True)
    assert set(clusters) == ({1, 2, 4, 8} if gpu.cluster > 1 else {1})
    for chunks, most in ((1, 1), (4, 1), (5, 2), (9, 2), (13, 4), (32, 8)):
        plan = plans.plan_verify_tree(gpu.machine, 1, 1024 * chunks)
        assert plan["cluster"] == min(most, gpu.cluster)


def test_a_gather_of_few_tokens_has_a_block_for_every_multiprocessor(
    plans: ModuleType, architecture: str
) -> None:
    """As far as there are tokens. Each of few has a block of four warps, all of which run at once;
    of more, a warp takes one at a time."""
    machine = GPUS[architecture].machine
    for rows, tokens in ((1, 128), (1, 512), (8, 128), (64, 128), (1, 1), (1, 8_000)):
        plan = plans.plan_gather_logits(machine, rows, tokens)
        assert plan["blocks"] >= min(machine[0], rows * tokens)
        assert plan["together"] == (rows * tokens <= 4 * machine[0])
        if plan["together"]:
            assert (plan["blocks"], plan["threads"]) == (rows * tokens, 128)
            assert_one_wave(architecture, plan)
        else:
            assert plan["threads"] == 256 or rows * tokens // 8 < machine[0]
    assert plans.plan_gather_logits(machine, 64, 128)["threads"] == 256


# ----------------------------------------------------------------------- order of work in verify


def test_verify_splits_sequences_only_if_there_are_more_multiprocessors(plans: ModuleType) -> None:
    machine = GPUS["sm_90a"].machine
    splits = [
        plans.plan_verify(machine, count, 5 * count, 5, 32_000, 128_256)["splits"]
        for count in (1, 131, 132)
    ]
    assert splits[0] > splits[1] == 2 > splits[2] == 1


# ------------------------------------------------------------------------------------- workspace


def test_the_workspace_of_verify_does_not_grow_with_a_careless_max_draft(plans: ModuleType) -> None:
    """A bound that no draft reaches, such as N, or the largest there is."""
    machine = GPUS["sm_90a"].machine
    for sequences in (1, 8, 64, 131, 132, 600, 4096):
        drafts = 8 * sequences
        for max_draft in (8, 64, drafts, 100 * drafts, 2**31 - 2):
            sizes = sequences, drafts, max_draft, 32_000, 128_256
            plan = plans.plan_verify(machine, *sizes, dynamic_size=16, rank=2)
            of_the_logits = (drafts + sequences) * 128_256 * 2
            assert plan["workspace_bytes"] <= max(64 * MIB, of_the_logits // 64)
