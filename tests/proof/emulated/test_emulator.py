"""Collectives are as CUDA defines them, and what a GPU leaves undefined is an error with its place.

The kernels are in emulator_kernels.cu. That a missing barrier or fence shows as well is what the
mutants of the operators' own kernels say (tests/proof/mutation).
"""

from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest

SEEDS = range(6)


def test_collectives_and_intrinsics_are_as_cuda_defines_them(emulator: ModuleType) -> None:
    threads = 64
    thread = np.arange(threads)
    lane = thread % 32
    low, high = sum(1 << i for i in range(5, 12)), sum(1 << i for i in range(12, 20))
    first_bit = np.where(thread > 0, np.log2(np.maximum(thread & -thread, 1)) + 1, 0)
    leading = np.where(thread > 0, 31 - np.floor(np.log2(np.maximum(thread, 1))), 32)
    rows = [
        (lane + 3) % 32,
        np.where(lane >= 3, lane - 3, lane),
        lane ^ 5,
        2 * (lane ^ 1) + 1,
        np.full(threads, sum(1 << i for i in range(0, 32, 3))),
        np.full(threads, 0),
        np.where(lane < 12, low, high),
        np.full(threads, 1),
        [sum(1 << i for i in range(one % 5, 32, 5)) for one in lane],
        100 * first_bit + leading,
    ]
    for seed in SEEDS:
        emulator.configure(seed=seed)
        out = np.zeros((len(rows), threads), dtype=np.uint32)
        emulator.primitives(out)
        np.testing.assert_array_equal(out, np.array(rows))


REPORTED = {
    "barrier_in_branch": r"barrier divergence: .*__syncthreads",
    "cluster_barrier_in_branch": r"barrier divergence: .*barrier.cluster",
    "barriers_of_two_branches": r"barrier divergence: .* waits at __syncthreads \(emulator_kernels",
    "return_before_barrier": r"thread \(3, 0, 0\)(: barrier divergence: it returns|, which has)",
    "shuffle_without_a_lane": r"thread \((5|37), 0, 0\)(: it returns while|, which has returned)",
    "shuffle_names_returned_lane": r"names thread \((5|37), 0, 0\), which has returned",
    "shuffle_outside_mask": r"mask 0x0000ffff is called by a lane that the mask does not name",
    "shuffle_reads_lane_outside_mask": r"__shfl_sync .* reads lane 16, which the mask does",
    "shuffle_against_ballot": r"__(shfl|ballot)_sync .* waits at __(ballot|shfl)_sync",
    "barrier_against_shuffle": r"barrier divergence: .* waits at __sync(warp|threads)",
    "circular_wait": r"deadlock: thread \((0|32), 0, 0\) waits at __syncwarp",
    "misaligned": r"an access of 16 bytes is not aligned",
    "return_before_copy": r"thread \(\d+, 0, 0\): it returns while copies are under way",
    "copy_to_global": r"async_copy to memory that is not shared",
    "early_without_a_wait": r"it returns and has not waited for earlier kernels",
    "early_copy_before_the_wait": r"async_copy before the wait for earlier kernels",
    "load_against_store": r"race: thread \(\d+, 0, 0\) has (stored|loaded) it",
    "store_before_shuffle": r"race: thread \(0, 0, 0\) has stored it",
    "load_before_shuffle": r"race: thread \(\d+, 0, 0\) has loaded it",
    "weak_load_of_a_counter": r"a weak access to what atomics change",
    "mixed_stores": r"memory written by global_store was then written without it",
}


@pytest.mark.parametrize(("misuse", "message"), REPORTED.items())
def test_what_a_gpu_leaves_undefined_is_an_error_that_says_where(
    emulator: ModuleType, misuse: str, message: str
) -> None:
    for seed in SEEDS:
        emulator.configure(seed=seed, block_order="forward")
        with pytest.raises(emulator.EmulationError, match=message) as error:
            emulator.misuse(
                getattr(emulator.Misuse, misuse), np.zeros(256, dtype=np.float32), 2, 64, 1024
            )
        assert "kernel misuse_kernel, block (0, 0, 0): " in str(error.value)
        assert misuse == "mixed_stores" or "thread (" in str(error.value)


OF_CLUSTERS = {
    "store_before_a_block_runs": r"a store to block [01] of the cluster, which may not run yet",
    "store_after_a_block_has_left": r"which has returned|returns while block 0 of the cluster st",
    "store_in_no_block": r"there is no block 2 of the cluster",
    "load_of_another_blocks_store": r"race: block [01] of the cluster has (stored|loaded) it",
    "load_of_another_warps_store": r"race: block [01] of the cluster has (stored|loaded) it",
    "load_behind_a_relaxed_barrier": r"race: block [01] of the cluster has (stored|loaded) it",
    "two_stores_to_one_place": r"race: block [01] of the cluster has stored there",
    "store_behind_a_load": r"race: block [01] of the cluster has (stored|loaded) it",
    "store_before_the_wait": r"an access between a cluster's arrival and its wait",
    "arrival_without_a_wait": r"it returns and has not waited for its cluster",
    "arrival_twice": r"it arrives twice at a barrier of its cluster",
    "wait_without_an_arrival": r"it waits for its cluster and has not arrived",
}


@pytest.mark.parametrize(("misuse", "message"), OF_CLUSTERS.items())
def test_what_a_cluster_leaves_undefined_is_an_error(
    emulator: ModuleType, misuse: str, message: str
) -> None:
    for seed, resident in itertools.product(SEEDS, (1, 4)):
        emulator.configure(seed=seed, resident=resident)
        with pytest.raises(emulator.EmulationError, match=message):
            emulator.misuse(
                getattr(emulator.Misuse, misuse), np.zeros(256, dtype=np.float32), 4, 64, 1024
            )


def test_blocks_of_a_cluster_store_into_each_others_shared_memory(emulator: ModuleType) -> None:
    """Static and dynamic, all the way round, while other clusters take turns."""
    number = 100 * np.arange(16)[:, None] + np.arange(32)
    for cluster, seed, resident in itertools.product((1, 2, 4, 8), SEEDS, (1, 12)):
        emulator.configure(seed=seed, resident=resident)
        out = np.zeros((16, 32), dtype=np.float32)
        emulator.exchange(out, cluster)
        np.testing.assert_array_equal(out, number)


@pytest.mark.parametrize(
    ("blocks", "threads", "dynamic_bytes", "message"),
    [
        (1, 1025, 0, "a block of (1025, 1, 1) threads"),
        (1, 0, 0, "a block of (0, 1, 1) threads"),
        (0, 32, 0, "a grid of (0, 1, 1) blocks"),
        (-1, 32, 0, "a grid of (4294967295, 1, 1) blocks"),
        (1, 32, 48 * 1024 - 127, "49025 bytes of dynamic shared memory, besides 128 static ones"),
    ],
)
def test_a_launch_that_no_gpu_takes_is_refused(
    emulator: ModuleType, blocks: int, threads: int, dynamic_bytes: int, message: str
) -> None:
    out = np.zeros(2048, dtype=np.float32)
    with pytest.raises(emulator.EmulationError) as error:
        emulator.misuse(emulator.Misuse.none, out, blocks, threads, dynamic_bytes)
    assert message in str(error.value)
    emulator.misuse(emulator.Misuse.none, out, 2, 1024, 48 * 1024 - 128)
    np.testing.assert_array_equal(out, np.tile(np.arange(1024), 2))


def test_a_kernel_has_as_much_shared_memory_as_it_was_allowed_last(emulator: ModuleType) -> None:
    """Static and dynamic together, on the device that it was allowed on."""
    out = np.zeros(1024, dtype=np.float32)

    def launch(dynamic_bytes: int, allowed_bytes: int = 0) -> None:
        emulator.misuse(emulator.Misuse.none, out, 1, 32, dynamic_bytes, allowed_bytes)

    most = 163 * 1024 - 128
    emulator.use_device(163 * 1024)
    with pytest.raises(emulator.EmulationError, match=f"the driver refuses {most + 1} bytes"):
        launch(0, most + 1)
    launch(most, most)
    launch(most)
    launch(60_000, 60_000)
    with pytest.raises(emulator.EmulationError, match="it is allowed 60000"):
        launch(60_001)
    emulator.use_device(163 * 1024)
    with pytest.raises(emulator.EmulationError, match="it is allowed 49024"):
        launch(49_025)
    emulator.use_device(227 * 1024)
