"""What kernels read and write: every output, nothing else, and nothing they need not read."""

from __future__ import annotations

import ctypes
import math
import mmap
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS
from tests import generators
from tests.devices import MACHINES, set_machine
from tests.operators.test_draft import arguments
from tests.proof.fuzz.worker import as_tuple
from tests.tolerances import assert_same_bits

from .driver_rules import static_bytes
from .emulated_operators import build
from .module_builder import run_sanitized
from .workloads import redistribute

ROOT = Path(__file__).resolve().parents[3]
FAR = 2**30 + 3  # elements between rows: the third row starts beyond 2^31


def far_apart(rows: Tensor, folder: Path) -> Tensor:
    """The same rows in a sparse file of some gigabytes, of which only they take space."""
    packed = rows.flatten(0, -2)
    count = (packed.shape[0] - 1) * FAR + packed.shape[1]
    file = folder / f"{len(list(folder.iterdir()))}"
    flat = torch.from_file(str(file), shared=True, size=count, dtype=rows.dtype)
    far = flat.as_strided(packed.shape, (FAR, 1))
    far.copy_(packed)
    return far.unflatten(0, rows.shape[:-1])


@pytest.mark.usefixtures("emulated")
def test_a_long_draft_ends_at_its_first_minus_one(cpu: Any) -> None:
    """Lanes look for it, 32 tokens at a time. The token there is drawn with BONUS's words."""
    for ends in ((37,), (0,), (31,), (32,), (33, 35, 60), (64,), ()):
        made = generators.batch(generators.affinity("identity", 300), [70])
        target = made.target_logits.clone()
        drafts = target[:70].argmax(1)
        target[torch.arange(70), drafts] += 60  # accepted for sure
        drafts[list(ends)] = -1
        target[list(ends)] = 0
        made = made.replace(
            target_logits=target,
            draft_token_ids=drafts,
            draft_rows=torch.full((70,), -1, dtype=torch.int32),
        )
        tokens, accepted, _ = torch.ops.rdk.verify(*made.arguments())
        assert accepted.tolist() == [min(ends, default=70)]
        assert torch.equal(tokens, cpu.verify(*made.arguments())[0])


@pytest.fixture(params=["cpu", *MACHINES])
def cpu_or_kernels(request: pytest.FixtureRequest) -> None:
    if request.param != "cpu":
        set_machine(request.getfixturevalue("emulated"), request.param, request)


FAST = ("draft", "redistribute", "gather_logits")
STRIDED = [
    operator if operator in FAST else pytest.param(operator, marks=pytest.mark.ci)
    for operator, rules in OPERATORS.items()
    if any(rule.strides for rule in rules.tensors.values())
]


@pytest.mark.usefixtures("cpu_or_kernels")
@pytest.mark.parametrize("operator", STRIDED)
def test_rows_beyond_2_31_elements_are_read(operator: str, tmp_path: Path) -> None:
    call, given = getattr(torch.ops.rdk, operator), generators.call(operator, torch.bfloat16)
    expected = as_tuple(call(**given))
    far = {
        name: far_apart(given[name], tmp_path)
        for name, rule in OPERATORS[operator].tensors.items()
        if rule.strides
    }
    assert_same_bits(as_tuple(call(**given | far)), expected)


@pytest.mark.usefixtures("cpu_or_kernels")
@pytest.mark.parametrize("lengths", [[2, 1], [4]], ids=str)
def test_verify_reads_rows_beyond_2_31_elements(lengths: list[int], tmp_path: Path) -> None:
    """Of later sequences, and later in a sequence that several blocks share."""
    affinity = generators.affinity("mixed-1", 3000)
    batch = generators.batch(affinity, lengths, dtype=torch.bfloat16, dynamic=5)
    drafts = torch.arange(lengths[0])
    batch.target_logits[drafts, batch.draft_token_ids[drafts]] = 60.0  # so that later rows matter
    expected = torch.ops.rdk.verify(*batch.arguments())
    assert expected[1][0] > 0
    names = ("target_logits", "draft_logits", "dynamic_tokens", "dynamic_logits")
    far = batch.replace(**{name: far_apart(getattr(batch, name), tmp_path) for name in names})
    assert_same_bits(torch.ops.rdk.verify(*far.arguments()), expected)


# ------------------------------------------------------------------------------------- outputs


@pytest.mark.usefixtures("kernels")
def test_stats_and_tokens_of_a_row_without_distribution_are_written() -> None:
    """The outputs most likely lie where those of the call before lay, which were good."""
    given = list(arguments(generators.affinity("mixed-2", 300), 7))
    torch.use_deterministic_algorithms(False)  # which would fill outputs with NaN
    for bad in (math.nan, -1.0, math.inf):
        torch.ops.rdk.draft(*given)
        spoilt = [given[0], torch.full((7,), bad), *given[2:]]
        tokens, stats = torch.ops.rdk.draft(*spoilt)
        assert stats.isnan().all()
        assert (tokens == -1).all()


# --------------------------------------------------------------------- what need not be read

COLUMNS = 8 * 1024  # of float32: whole pages, and enough for two blocks


def unreadable_behind_the_first() -> Tensor:
    """Two rows of logits, [2, COLUMNS] float32; to read the second ends the process."""
    bytes_each = COLUMNS * 4
    memory = mmap.mmap(-1, 2 * bytes_each)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    rows = torch.frombuffer(memory, dtype=torch.float32).view(2, COLUMNS)
    rows.copy_(generators.logits(2, COLUMNS))
    libc = ctypes.CDLL(None, use_errno=True)
    protection = libc.mprotect(ctypes.c_void_p(address + bytes_each), bytes_each, 0)
    assert protection == 0
    return rows


def verify_one_rejected_draft(multiprocessors: int) -> None:
    """In a process of its own: the second target row lies in unreadable memory."""
    from .emulated_operators import emulator

    emulator().set_machine(multiprocessors)
    batch = generators.batch(generators.affinity("identity", COLUMNS), [1])
    target = unreadable_behind_the_first()
    target[0, batch.draft_token_ids[0]] = -math.inf
    batch = batch.replace(target_logits=target)
    _, accepted, _ = torch.ops.rdk_emulated.verify(*batch.arguments())
    assert accepted.tolist() == [0]


@pytest.mark.night
@pytest.mark.parametrize(("multiprocessors", "survives"), [(1, True), (132, False)])
def test_in_order_rows_behind_the_first_rejection_are_never_read(
    emulated: ModuleType, multiprocessors: int, survives: bool
) -> None:
    """The control is the split strategy, which sums the rows of all positions."""
    call = f"verify_one_rejected_draft({multiprocessors})"
    script = f"import rdk_cuda, tests.proof.emulated.test_kernels_memory as m; m.{call}"
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (result.returncode == 0) == survives, result.stderr


# ------------------------------------------------------------------------- leave for shared memory


def columns(size: int) -> generators.Batch:
    """A batch whose one row takes 4 * size bytes of shared memory in redistribute, on one
    multiprocessor."""
    return generators.batch(generators.affinity("identity", size), [1])


def test_a_thread_never_takes_shared_memory_from_another(emulated: ModuleType) -> None:
    """A thread that sets the attribute waits, before it launches, for the other to set it too."""
    most = 100_000 - static_bytes("redistribute_kernel<float, Whole>")
    emulated.set_machine(1, 100_000)
    both_have_set = threading.Barrier(2)
    history: list[tuple[str, int]] = []

    def watch(what: str, kernel: str, count: int) -> None:
        history.append((what, count))
        if what == "set":
            with suppress(threading.BrokenBarrierError):
                both_have_set.wait(timeout=0.5)

    large, small = columns(24_000), columns(13_000)
    emulated.watch_shared_memory(watch)
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(redistribute, given) for given in (large, small)]
    emulated.watch_shared_memory(None)
    for call in calls:
        call.result()
    assert history[0] == ("set", most)
    assert sorted(history[1:]) == [("launch", 4 * 13_000), ("launch", 4 * 24_000)]


def test_every_machine_is_asked_anew(emulated: ModuleType) -> None:
    history: list[tuple[str, int]] = []
    emulated.watch_shared_memory(lambda what, kernel, count: history.append((what, count)))
    for shared_bytes in (100_000, 101_000, 48 * 1024):
        emulated.set_machine(1, shared_bytes)
        for size in (300, 12_000):
            redistribute(columns(size))
    emulated.watch_shared_memory(None)
    assert [count for what, count in history if what == "set"] == [99_856, 100_856]


# ---------------------------------------------------------------------------------- sanitizers

# Every path on machines that split, group and tile, and arguments that point outside.
SANITIZED = [
    "proof/emulated/test_kernels_schedules.py::test_any_machine_gives_the_same_bits",
    "operators/test_any_call.py::test_any_call_is_refused_by_name_or_served_as_promised",
    "operators/test_bad_values.py::test_a_drafted_id_out_of_range_is_rejected",
    "operators/test_gather_logits.py::test_every_dtype_and_width",
]
RUN_TESTS = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.night
def test_address_and_undefined_behaviour_sanitizers_find_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = build(sanitize=True)
    monkeypatch.setenv("RDK_EMULATED_MODULE", str(module))
    tests = [f"{ROOT}/tests/{test}" for test in SANITIZED]
    fewer_machines = ["-k", "not 232448 and not 4-40000"]
    options = ["-qx", "-p", "no:cacheprovider", *fewer_machines]
    result = run_sanitized(module, RUN_TESTS, *options, *tests, timeout=900)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    assert " passed" in result.stdout
