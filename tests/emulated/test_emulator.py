"""The emulator runs right kernels right, in every schedule, and notices each kind of wrong one.

The kernels are in emulator_kernels.cu. Each deliberate bug there is a negative control: a test of
the project's own kernels means something only if a bug of that kind would be seen.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

SEEDS = range(6)


def random_logits(rows: int, columns: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(scale=3, size=(rows, columns)).astype(np.float32)


def exact_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return exponentials / exponentials.sum(axis=1, keepdims=True)


def is_softmax(probs: NDArray[np.float32], logits: NDArray[np.float32]) -> bool:
    return np.allclose(probs, exact_softmax(logits), rtol=1e-5, atol=0)


def softmax(
    emulator: ModuleType, logits: NDArray[np.float32], threads: int, all_barriers: bool = True
) -> NDArray[np.float32]:
    probs = np.full_like(logits, np.nan)
    emulator.softmax(logits, probs, threads, all_barriers)
    return probs


# ---- right kernels ----


@pytest.mark.parametrize(("threads", "columns"), [(32, 1), (64, 1025), (1024, 31), (1024, 4096)])
def test_a_block_softmax_is_the_same_to_the_bit_in_every_schedule(
    emulator: ModuleType, threads: int, columns: int
) -> None:
    logits = random_logits(3, columns)
    emulator.configure(shuffle=False, block_order="forward")
    in_order = softmax(emulator, logits, threads)
    assert is_softmax(in_order, logits)
    for seed in SEEDS:
        emulator.configure(seed=seed)
        np.testing.assert_array_equal(softmax(emulator, logits, threads), in_order)


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
        100 * first_bit + leading,
    ]
    for seed in SEEDS:
        emulator.configure(seed=seed)
        out = np.zeros((len(rows), threads), dtype=np.uint32)
        emulator.primitives(out)
        np.testing.assert_array_equal(out, np.array(rows))


# ---- schedules ----


def order(emulator: ModuleType, **options: object) -> NDArray[np.uint32]:
    emulator.configure(**options)
    out = np.zeros((16, 64), dtype=np.uint32)
    emulator.order(out)
    np.testing.assert_array_equal(np.sort(out, axis=None), np.arange(out.size))
    return out


def test_blocks_run_one_at_a_time_in_the_order_asked_for_or_of_the_seed(
    emulator: ModuleType,
) -> None:
    forward = np.arange(16 * 64).reshape(16, 64)
    in_order = order(emulator, shuffle=False, block_order="forward")
    np.testing.assert_array_equal(in_order, forward)
    reverse = order(emulator, shuffle=False, block_order="reverse")
    np.testing.assert_array_equal(reverse, forward[::-1])
    shuffled = order(emulator, seed=1)
    np.testing.assert_array_equal(order(emulator, seed=1), shuffled)
    assert (order(emulator, seed=4) != shuffled).any()
    assert (np.ptp(shuffled, axis=1) == 63).all()
    assert (np.argsort(shuffled[:, 0]) != np.arange(16)).any()
    assert (np.argsort(shuffled, axis=1) != np.arange(64)).any()


# ---- bugs that show as wrong results ----


def test_a_missing_barrier_shows(emulator: ModuleType) -> None:
    """Between a write and a read, and between a read and the next write."""
    long, short = random_logits(2, 5000), random_logits(2, 100)
    wrong = {"read": 0, "next write": 0}
    for seed in SEEDS:
        emulator.configure(seed=seed)
        wrong["read"] += not is_softmax(softmax(emulator, long, 256, all_barriers=False), long)
        probs = np.zeros_like(short)
        emulator.shared_softmax(short, probs, True)
        assert is_softmax(probs, short)
        emulator.shared_softmax(short, probs, False)
        wrong["next write"] += not is_softmax(probs, short)
    assert all(wrong.values()), wrong


def last_block_sums(
    emulator: ModuleType, publication: str, seed: int, blocks: int = 4, resident: int = 1
) -> tuple[bool, bool]:
    """Whether the last block saw all partial sums, and whether they were there after the grid."""
    values = np.arange(1, 2001, dtype=np.int32)
    partials = np.full(blocks * 64, -(10**6), dtype=np.int32)
    ticket, total = np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.int32)
    emulator.configure(seed=seed, resident=resident)
    emulator.reduction(
        values, partials, ticket, total, blocks, 64, getattr(emulator.Publication, publication)
    )
    return total[0] == values.sum(), partials.sum() == values.sum()


@pytest.mark.parametrize(
    ("publication", "seen"),
    [
        ("fence_after_barrier", "always"),
        ("fence_by_every_thread", "always"),
        ("fence_by_warps", "always"),
        # Without a fence no other block sees it until the grid ends.
        ("no_fence", "never"),
        ("no_barrier_before_fence", "never"),
        ("cluster", "always"),
        ("cluster_of_lone_blocks", "never"),
        # The ticket may be taken before the fence.
        ("ticket_first", "not always"),
        ("no_barrier_after_fences", "not always"),
    ],
)
def test_the_last_block_sees_what_was_fenced_before_the_ticket_and_a_cluster_what_was_stored(
    emulator: ModuleType, publication: str, seen: str
) -> None:
    found = [last_block_sums(emulator, publication, seed) for seed in SEEDS]
    by_last_block = [each[0] for each in found]
    assert {"always": all(by_last_block), "never": not any(by_last_block)}.get(
        seen, not all(by_last_block)
    )
    assert seen == "not always" or all(after_the_grid for _, after_the_grid in found)


@pytest.mark.parametrize("resident", [2, 5])
def test_blocks_that_take_turns_see_what_was_fenced_before_the_ticket(
    emulator: ModuleType, resident: int
) -> None:
    """And nothing else, and each has its own shared memory and threads."""
    logits = random_logits(7, 500)
    for seed in SEEDS:
        for publication in (
            "fence_after_barrier",
            "fence_by_every_thread",
            "fence_by_warps",
            "cluster",
        ):
            assert last_block_sums(emulator, publication, seed, 8, resident) == (True, True)
        for publication in ("no_fence", "no_barrier_before_fence", "cluster_of_lone_blocks"):
            assert last_block_sums(emulator, publication, seed, 8, resident) == (False, True)
        assert is_softmax(softmax(emulator, logits, 128), logits)
        with pytest.raises(emulator.EmulationError):
            emulator.misuse(
                emulator.Misuse.circular_wait, np.zeros(2048, dtype=np.float32), 2, 1024, 0
            )
        assert emulator.live_guards() == 0


@pytest.mark.parametrize(
    "misuse", ["uninitialised_static", "uninitialised_dynamic", "uninitialised_in_template"]
)
def test_shared_memory_that_was_not_written_reads_as_garbage(
    emulator: ModuleType, misuse: str
) -> None:
    """NaN, then huge, then very negative, because a maximum would hide a NaN."""
    for seed in SEEDS:
        out = np.zeros(3 * 64, dtype=np.float32)
        emulator.configure(seed=seed, block_order="forward")
        emulator.misuse(getattr(emulator.Misuse, misuse), out, 3, 64, 256)
        garbage = out.reshape(3, 64)[:, 1]
        assert np.isnan(garbage).sum() == 1
        assert (garbage > 1e30).sum() == 1
        assert (garbage < -1e30).sum() == 1


@pytest.mark.parametrize("misuse", ["copy_not_waited_for", "copy_of_the_last_group_not_waited_for"])
def test_a_copy_that_was_not_waited_for_may_read_as_garbage(
    emulator: ModuleType, misuse: str
) -> None:
    out = np.zeros(64, dtype=np.float32)
    emulator.misuse(getattr(emulator.Misuse, misuse), out, 1, 64, 64 * 16)
    assert np.isnan(out).any()


# ---- bugs that are reported ----

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
    "copy_of_17_bytes": r"async_copy_part of 17 bytes, of at most 16",
    "early_without_a_wait": r"it returns and has not waited for earlier kernels",
    "early_copy_before_the_wait": r"async_copy before the wait for earlier kernels",
    "load_against_store": r"race: thread \(\d+, 0, 0\) has (stored|loaded) it",
    "store_before_shuffle": r"race: thread \(0, 0, 0\) has stored it",
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


def test_a_full_mask_in_a_part_of_a_warp_is_an_error(emulator: ModuleType) -> None:
    with pytest.raises(emulator.EmulationError, match="names lanes that the block does not have"):
        softmax(emulator, random_logits(1, 100), 48)


@pytest.mark.parametrize("misuse", ["throws", "barrier_in_branch", "circular_wait"])
def test_an_error_unwinds_every_thread_and_the_next_launch_is_right(
    emulator: ModuleType, misuse: str
) -> None:
    logits = random_logits(2, 500)
    for seed in SEEDS:
        emulator.configure(seed=seed)
        with pytest.raises(IndexError if misuse == "throws" else emulator.EmulationError):
            emulator.misuse(
                getattr(emulator.Misuse, misuse), np.zeros(2048, dtype=np.float32), 2, 1024, 0
            )
        assert emulator.live_guards() == 0
        assert is_softmax(softmax(emulator, logits, 128), logits)


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


def test_a_cluster_that_no_gpu_has_is_refused(emulator: ModuleType) -> None:
    with pytest.raises(emulator.EmulationError, match=r"clusters of 9 in a grid of \(9, 1, 1\)"):
        last_block_sums(emulator, "cluster", seed=0, blocks=9)
    assert last_block_sums(emulator, "cluster", seed=0, blocks=8) == (True, True)


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
