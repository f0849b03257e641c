"""Bits do not depend on the machine, the strategy it leads to, or the order things happen in."""

from __future__ import annotations

import functools
import itertools
import math
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import generators, tree_generators
from tests.operators.test_thresholds import thresholds
from tests.tolerances import assert_same_bits

from .driver_rules import static_bytes
from .workloads import (
    WORKLOADS,
    batch,
    draft,
    few_rows,
    no_residual,
    redistribute,
    row_limits,
    verify,
)

FULL = 227 * 1024
# Splits of every number of blocks and, in redistribute, of groups and tiles. 1000 bytes hold
# neither q' nor the marks of a large tile.
MACHINES = [
    (5, 1000),
    *(
        pytest.param(*each, marks=pytest.mark.night)
        for each in [(132, 40_000), (2, FULL), (4, 40_000), (16, FULL)]
    ),
]
# Most of the time is theirs, so they are tried on other machines and schedules in the slower tier.
HEAVY = ("direct pass", "no residual", "long", "redistribute", "overlap")
LIGHTEST = ("verify, direct pass", "redistribute, plain, 16 bits", "overlap_backward")
EVERY = [
    pytest.param(
        name, marks=pytest.mark.ci if name not in LIGHTEST and any(h in name for h in HEAVY) else ()
    )
    for name in WORKLOADS
]
CLUSTERED = [
    name
    for name in WORKLOADS
    if name.startswith(("draft", "redistribute, plain", "verify_tree"))
    and "drawn" not in name
    and "by block" not in name
]
TICKETS = ["draft", "draft, limits", "verify", "verify, limits", "verify, by block"]
STATIC_BYTES = static_bytes("redistribute_kernel<float, Whole>")

CUT_BYTES = 16_608  # of a block of redistribute whose rows may be cut


@functools.cache
def in_order(emulated: ModuleType, workload: str) -> tuple[Tensor, ...]:
    """On one multiprocessor, blocks and threads in the order of their index."""
    emulated.set_machine(1, FULL)
    emulated.configure(shuffle=False, block_order="forward")
    return WORKLOADS[workload]()


@pytest.mark.parametrize(("multiprocessors", "shared_bytes"), MACHINES)
@pytest.mark.parametrize("workload", EVERY)
def test_any_machine_gives_the_same_bits(
    emulated: ModuleType, workload: str, multiprocessors: int, shared_bytes: int
) -> None:
    """So both strategies of verify, a draft row split or whole, q' in shared memory or not."""
    expected = in_order(emulated, workload)
    emulated.set_machine(multiprocessors, shared_bytes)
    emulated.configure()
    assert_same_bits(WORKLOADS[workload](), expected)


@pytest.mark.parametrize("seeds", [(1, 2), pytest.param((3, 4), marks=pytest.mark.night)])
@pytest.mark.parametrize(
    ("multiprocessors", "shared_bytes"), [(16, FULL), pytest.param(1, 1000, marks=pytest.mark.ci)]
)
@pytest.mark.parametrize("workload", EVERY)
def test_any_schedule_gives_the_same_bits(
    emulated: ModuleType,
    workload: str,
    multiprocessors: int,
    shared_bytes: int,
    seeds: tuple[int, ...],
) -> None:
    """Threads shuffled or not; blocks forwards, backwards and shuffled; fences seen late.

    One multiprocessor never splits.
    """
    expected = in_order(emulated, workload)
    emulated.set_machine(multiprocessors, shared_bytes)
    emulated.configure(shuffle=False, block_order="reverse")
    assert_same_bits(WORKLOADS[workload](), expected)
    for seed in seeds:
        emulated.configure(seed=seed, block_order=("shuffled", "reverse")[seed % 2])
        assert_same_bits(WORKLOADS[workload](), expected)


@pytest.mark.parametrize("workload", TICKETS)
def test_tickets_need_no_cleared_workspace(emulated: ModuleType, workload: str) -> None:
    """Blocks that take turns open them late, over what other launches left, as in the replays of a
    graph, whose launches have one stamp."""
    expected = in_order(emulated, workload)
    emulated.set_machine(132, FULL)
    for byte, resident in ((0, 1), (0xFF, 8), (-1, 8), (-1, 3)):
        emulated.fill_workspace(byte)
        emulated.configure(seed=byte + resident, resident=resident)
        outputs = WORKLOADS[workload]()
        assert_same_bits(outputs, expected)
    for seed in range(3) if workload.startswith("verify") else ():  # inputs of draft are gone
        emulated.configure(seed=seed, resident=4 * seed + 1)
        for output in outputs:
            output.fill_(77)
        emulated.replay()
        assert_same_bits(outputs, expected)


@pytest.mark.parametrize("changes", [{}, {"top_k": 300, "logprobs": 1}], ids=["whole", "cut"])
def test_a_scout_of_verify_looks_up_drafts_while_others_sum(
    emulated: ModuleType, changes: dict[str, int]
) -> None:
    """Where a sequence has 16 blocks or more, the last one sums nothing; a warp of it has several
    drafts. Where it has fewer, each does both."""
    size = 5 * 1024 + 1
    made = generators.batch(generators.affinity("mixed-1", size), [30], dtype=torch.bfloat16)
    drafts = torch.arange(20)
    made.target_logits[drafts, made.draft_token_ids[drafts]] += 30  # accepted, for the most part
    made = made.with_stats()
    if changes:
        made = made.replace(top_k=torch.tensor([changes["top_k"]], dtype=torch.int32), logprobs=1)
    assert emulated.plan_verify((132, FULL, 1), 1, 30, 30, size, size)["splits"] >= 16
    emulated.set_machine(1, FULL)
    expected = verify(made)
    assert int(expected[1][0]) > 16
    for seed, (machine, resident) in enumerate(((132, 1), (132, 40), (5, 4))):
        emulated.set_machine(machine, FULL)
        emulated.configure(seed=seed, resident=resident)
        assert_same_bits(verify(made), expected)


@functools.cache
def passes(cut: bool) -> tuple[generators.Batch, tuple[Tensor, ...]]:
    """Direct passes of five batches of chunks for most sequences, one of which is unusable, and
    what a machine that never shares them makes of them."""
    made = generators.nearly_equal(9 * 1024 + 1, sequences=10, beyond=0.03)
    made.target_temperature[3] = math.nan
    if cut:
        made = made.replace(top_k=torch.full((10,), 9000, dtype=torch.int32), logprobs=2)
        made.top_k[::3] = 0
    return made, verify(made)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("machine", [3, 5, 132])
def test_idle_blocks_share_direct_passes_of_verify(
    emulated: ModuleType, machine: int, cut: bool
) -> None:
    """Helpers come never, late, or several at once, over what other launches left and in replays of
    a graph; with 3 multiprocessors some blocks begin when others have left."""
    emulated.set_machine(1, FULL)
    emulated.configure(shuffle=False, block_order="forward")
    made, expected = passes(cut)
    emulated.set_machine(machine, FULL)
    for seed, resident in enumerate((1, 2, 4, 12, 12, 40, 40, 300)):
        emulated.fill_workspace((0xFF, 0, -1)[min(seed, 2)])
        emulated.configure(seed=seed, resident=resident)
        outputs = verify(made)
        assert_same_bits(outputs, expected)
        if seed < 2:
            continue
        for output in outputs:
            output.fill_(77)
        emulated.replay()
        assert_same_bits(outputs, expected)


def test_every_launch_has_a_stamp_of_its_own(emulated: ModuleType) -> None:
    stamps = [emulated.next_stamp() for _ in range(10_000)]
    assert len(set(stamps)) == len(stamps)
    assert all(stamp % 2**16 == 0 for stamp in stamps)
    for bit in range(16, 64):
        assert 4_500 < sum(stamp >> bit & 1 for stamp in stamps) < 5_500


@pytest.mark.parametrize(
    "cluster", [2, *(pytest.param(size, marks=pytest.mark.ci) for size in (4, 8))]
)
@pytest.mark.parametrize("workload", CLUSTERED)
def test_clusters_give_the_same_bits(emulated: ModuleType, workload: str, cluster: int) -> None:
    """As one block for each row or tree does; few blocks take turns, or many."""
    expected = in_order(emulated, workload)
    emulated.set_machine(132, FULL, cluster)
    for seed, resident in enumerate((1, 3 * cluster)):
        emulated.configure(seed=seed, resident=resident)
        assert_same_bits(WORKLOADS[workload](), expected)


@pytest.mark.parametrize("cluster", [4, 8])
def test_verify_tree_walks_in_clusters_of_any_size(emulated: ModuleType, cluster: int) -> None:
    """Rows of 29 chunks are enough for 8 blocks; the clusters of two trees leave at once."""
    size = 28 * 1024 + 1
    trees = tree_generators.trees([20, 0, 31, 9] * 2, size, dtype=torch.bfloat16)
    trees.temperature = torch.tensor([1.0, math.nan, 0.0, 0.7]).repeat(2)
    expected = torch.ops.rdk.verify_tree(*trees.arguments())
    assert (expected[1] > 1).sum() >= 3
    machine = 132, FULL, cluster
    assert emulated.plan_verify_tree(machine, 8, size)["cluster"] == cluster
    emulated.set_machine(*machine)
    for seed, resident in enumerate((1, cluster, 3 * cluster)):
        emulated.configure(seed=seed, resident=resident)
        assert_same_bits(torch.ops.rdk.verify_tree(*trees.arguments()), expected)


@pytest.mark.parametrize("cluster", [1, 8])
def test_verify_tree_walks_rows_of_more_chunks_than_it_keeps_as_the_cpu_does(
    emulated: ModuleType, cpu: Any, cluster: int
) -> None:
    """Draws and argmaxes of 256 chunks, which are kept, and of those behind, which are not."""
    kept = 256 * 1024
    trees = tree_generators.trees([0] * 6, kept + 1030, dtype=torch.bfloat16)
    trees.target_logits[:3, kept - 5000 :] += 20
    trees.target_logits[3:, kept - 3 :] += 40
    emulated.set_machine(132, FULL, cluster)
    for temperature in (1.0, 0.0):
        walked = trees.replace(temperature=torch.full((6,), temperature))
        tokens = torch.ops.rdk.verify_tree(*walked.arguments())[0]
        assert torch.equal(tokens, cpu.verify_tree(*walked.arguments())[0])
        assert 1 <= int((tokens >= kept).sum()) <= 5


def test_verify_tree_by_block_needs_no_drafter(emulated: ModuleType, cpu: Any) -> None:
    """Nor an affinity, of which a tree of fixed nodes has none."""
    walked = tree_generators.trees([3, 0, 9], 2500).replace(method=1)
    emulated.set_machine(132, FULL, 1)
    assert_same_bits(
        torch.ops.rdk.verify_tree(*walked.arguments()), cpu.verify_tree(*walked.arguments())
    )


def test_a_boundary_in_any_bin_is_found_by_a_block_of_any_shape(emulated: ModuleType) -> None:
    """Of 2 to 8 warps, which a plan gives a cluster of two by the number of chunks.

    The first turn has 2048 bins of 2^21 floats, the second 2048 of 2^10. Rows that are not cut have
    the same bits as in one block.
    """
    sizes, rows = range(1024, 2**17 + 1, 1024), (1, 8, 33, 50, 100, 131, 132)
    machines = [(132, FULL, cluster) for cluster in (1, 2, 4, 8)]
    planned = {
        emulated.plan_draft(machine, count, size, limits=True)["threads"] // 32
        for machine, count, size in itertools.product(machines, rows, sizes)
    }
    assert planned == set(range(2, 9))
    four = torch.tensor(4.0).view(torch.int32)
    bins = torch.tensor([0, 1, 1024, 1919, 1920, 2015, 2016, 2047], dtype=torch.int32)
    least = (four - (1 << 21) - (bins << 10)).view(torch.float32)
    least = torch.cat([least, torch.tensor([-3e38])])
    for warps in planned:
        emulated.set_machine(1, FULL)
        uncut = generators.batch(generators.affinity("identity", 2048 * warps - 5), [2])
        expected = draft(uncut)
        emulated.set_machine(132, FULL, cluster=2)
        assert_same_bits(draft(uncut), expected)
        z = torch.full((least.numel(), 2048 * warps), -math.inf)
        z[:-1] = -1.0
        z[:, 2000] = least
        z[:, 5] = torch.tensor([*[4.0] * bins.numel(), 3e38])
        plan = emulated.plan_draft((132, FULL, 2), *z.shape, limits=True)
        assert (plan["threads"], plan["cluster"]) == (32 * warps, 2)
        top_k = torch.full(least.shape, 2, dtype=torch.int32)
        assert torch.equal(thresholds(z, top_k=top_k), least), warps


@pytest.mark.parametrize("workload", [name for name in WORKLOADS if "redistribute" not in name])
def test_the_cpu_operators_give_the_same_tokens(
    emulated: ModuleType, cpu: Any, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So few draws that none of them lies at a boundary (section 5)."""
    ours = WORKLOADS[workload]()
    monkeypatch.setattr(torch.ops, "rdk", cpu)
    for actual, expected in zip(ours, WORKLOADS[workload](), strict=True):
        exact: dict[str, Any] = {} if expected.is_floating_point() else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(actual, expected, equal_nan=True, **exact)


def test_the_workloads_lead_where_they_say(emulated: ModuleType) -> None:
    """Accepted, rejected, replaced after a direct pass, and stopped: all of it occurs."""
    tokens, accepted, _ = WORKLOADS["verify"]()
    assert 0 < int(accepted.sum()) < 8
    assert int((tokens >= 0).sum()) == 4 + int(accepted.sum())
    tokens, accepted, _ = WORKLOADS["verify, greedy"]()
    assert 0 < int(accepted.sum()) < 8
    assert not WORKLOADS["verify, direct pass"]()[1].any()
    tokens, accepted, _ = WORKLOADS["verify, no residual"]()
    assert 0 < int(accepted.sum()) < no_residual().size
    assert (tokens[:, 0] >= 0).all()
    tokens, accepted, _ = WORKLOADS["verify, bad values"]()
    assert accepted.tolist()[1] == 0
    assert tokens[1, 0] == -1


def whole_vectors(count: int) -> int:
    return -(-count // 4) * 4


@pytest.mark.ci
@pytest.mark.parametrize("limits", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_redistribute_at_each_limit_of_shared_memory(
    emulated: ModuleType, dynamic: bool, limits: bool
) -> None:
    """q' of 1, 2 or 4 rows and the marks of their tiles fit exactly, or lack 4 or more bytes.

    Then tiles shrink, if there are marks; at the end hardly a mark has room.
    """
    given = few_rows()
    if not dynamic:
        given = given.replace(dynamic_tokens=None, dynamic_logits=None)
    row_of = row_limits(4) if limits else None
    emulated.set_machine(1, FULL)
    expected = redistribute(given, limits=row_of)
    row = 4 * whole_vectors(given.affinity.draft_size)
    marks = whole_vectors(given.affinity.target_size) if dynamic else 0
    sizes = [group * (row + marks) - lacking for group in (1, 2, 4) for lacking in (0, 4, 12)]
    for size in [*sizes, 400]:
        emulated.set_machine(1, STATIC_BYTES + (CUT_BYTES if limits else 0) + size)
        assert_same_bits(redistribute(given, limits=row_of), expected)


def test_other_inputs_give_other_bits(emulated: ModuleType) -> None:
    """The control: without it, a test of equality would pass on constants."""
    for workload in (draft, redistribute, verify):
        one, other = workload(batch()), workload(batch("virtual"))
        assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_sequences_whose_offsets_overlap_do_not_disturb_each_other(
    emulated: ModuleType, cpu: Any
) -> None:
    """[0, 4, 2, 6]: the second has no drafts, the others own some rows in common."""
    emulated.set_machine(132)
    batch = generators.batch(generators.affinity("mixed-1", 8193), [2, 2, 2]).replace(
        draft_offsets=torch.tensor([0, 4, 2, 6], dtype=torch.int32),
        max_draft=4,
        target_temperature=torch.tensor([1.0, 1.0, 0.3]),
        draft_temperature=torch.tensor([1.0, 1.0, 2.0]),
    )
    expected, _, _ = cpu.verify(*batch.arguments())
    for seed in range(20):
        emulated.configure(seed=seed)
        assert torch.equal(torch.ops.rdk.verify(*batch.arguments())[0], expected)
