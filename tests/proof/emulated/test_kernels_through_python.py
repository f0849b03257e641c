"""Kernels that Python starts, as CuPy's backend does, run as those that the module starts itself.

The `Starter` is the real one; under it the emulator takes the place of CUDA's driver.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rdk_cuda._ops.contract import OPERATORS
from rdk_cuda.integrations.cupy import nvrtc
from rdk_cuda.integrations.cupy.cubin_cache import Cubin
from tests import generators
from tests.devices import MACHINES
from tests.tolerances import assert_same_bits

from .driver_rules import Driver
from .test_plans import RING_BYTES
from .workloads import WORKLOADS, batch, draft, limited, overlap, redistribute, verify

ROOT = Path(__file__).resolve().parents[3]
STREAM = 12345
MORE_THAN_ALWAYS = 100_000  # bytes of shared memory


class EmulatedCuda:
    """Of `cupy.cuda.driver` and `cupy.cuda.runtime` what starts kernels; it keeps what it is told.

    A function's handle is its place in `functions`, where a symbol is a kernel's own name.
    """

    cudaDevAttrMultiProcessorCount = 16  # noqa: N815
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97  # noqa: N815
    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8

    def __init__(self, emulator: ModuleType, machine: tuple[int, int]) -> None:
        self.emulator = emulator
        self.facts = dict(zip((16, 97), machine, strict=True))
        self.functions = ["no function has the handle 0"]
        self.launched: list[tuple[str, int, int, int]] = []  # name, blocks, threads, shared bytes
        self.driver = Driver(machine[1])
        self.device = 99

    def deviceGetAttribute(self, attrib: int, device: int) -> int:  # noqa: N802
        return self.facts[attrib]

    def setDevice(self, device: int) -> None:  # noqa: N802
        self.device = device

    def moduleLoadData(self, image: bytes) -> int:  # noqa: N802
        assert image == b"code"
        return 7

    def moduleGetFunction(self, module: int, funcname: str) -> int:  # noqa: N802
        assert module == 7
        self.functions.append(funcname)
        return len(self.functions) - 1

    def funcSetAttribute(self, f: int, attribute: int, value: int) -> None:  # noqa: N802
        assert attribute == self.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.driver.set_attribute(self.functions[f], value)

    def launchKernel(  # noqa: N802
        self,
        f: int,
        grid_dim_x: int,
        grid_dim_y: int,
        grid_dim_z: int,
        block_dim_x: int,
        block_dim_y: int,
        block_dim_z: int,
        shared_mem_bytes: int,
        stream: int,
        kernel_params: int,
        extra: int,
    ) -> None:
        assert (grid_dim_y, grid_dim_z, block_dim_y, block_dim_z) == (1, 1, 1, 1)
        assert (stream, extra) == (STREAM, 0)
        kernel = self.functions[f]
        size = nvrtc.kernels()[kernel.split("_kernel")[0]]["launch_bytes"]
        (launch,) = (ctypes.c_void_p * 1).from_address(kernel_params)
        shape = (grid_dim_x, block_dim_x, shared_mem_bytes)
        self.launched.append((kernel, *shape))
        self.driver.launch(kernel, shared_mem_bytes)
        self.emulator.start(kernel, *shape, ctypes.string_at(launch, size))


Installed = Callable[..., EmulatedCuda]


@pytest.fixture
def through_python(emulated: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installed]:
    """From a machine on, `torch.ops.rdk` is the kernels, started through Python."""
    monkeypatch.setattr(nvrtc, "compile_kernel", lambda kernel, arch: Cubin(kernel, b"code"))

    def install(
        machine: tuple[int, int] = (4, 227 * 1024),
        made_of: type[EmulatedCuda] = EmulatedCuda,
        capturing: Callable[[], bool] = lambda: False,
        capability: tuple[int, int] = (9, 0),
    ) -> EmulatedCuda:
        cuda = made_of(emulated, machine)
        emulated.set_starter(
            nvrtc.Starter(
                cuda,
                cuda,
                stream=lambda device: STREAM,
                capability=lambda device: capability,
                capturing=capturing,
            )
        )
        emulated.start_through_python(True)
        return cuda

    yield install
    emulated.start_through_python(False)
    emulated.set_starter(None)


def columns(size: int) -> generators.Batch:
    """A batch whose one row takes 4 * size bytes of shared memory in redistribute."""
    return generators.batch(generators.affinity("identity", size), [1])


def any_call() -> Tensor:
    result: Tensor = torch.ops.rdk.step_keys(torch.arange(3), torch.arange(3))
    return result


@pytest.mark.ci
@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_same_bits_as_kernels_that_the_module_starts(
    emulated: ModuleType, through_python: Installed, workload: str
) -> None:
    """On a machine that splits whatever can be split, with tickets."""
    machine = MACHINES["small-batches"]
    emulated.set_machine(*machine)
    expected = WORKLOADS[workload]()
    cuda = through_python(machine[:2])  # it has no clusters
    assert_same_bits(WORKLOADS[workload](), expected)
    kernel, blocks, _, _ = cuda.launched[-1]
    operator = workload.split(",")[0].replace("on shards", "verify_shard")
    assert kernel.startswith(f"{operator.removesuffix('_step')}_kernel")
    assert blocks > 0
    assert cuda.device == -1  # of tensors on the CPU


def test_what_the_machine_has_decides_the_launch(through_python: Installed) -> None:
    """A block a row on one multiprocessor; on many, several blocks that meet at a ticket a row."""
    rows = batch().draft_logits.shape[0]
    one = through_python((1, 227 * 1024))
    draft(batch())
    assert one.launched == [("draft_kernel<float, Whole>", rows, 256, 8 * RING_BYTES)]
    many = through_python((132, 227 * 1024))
    draft(batch())
    ((_, blocks, threads, shared_bytes),) = many.launched
    assert blocks > rows
    assert (threads, shared_bytes) == (64, 2 * RING_BYTES)


def test_shared_memory_is_asked_for_once_whatever_calls_need(through_python: Installed) -> None:
    """Beyond 48 KiB, and as much as any call may need."""
    cuda = through_python((1, MORE_THAN_ALWAYS))  # one tile, whose weights are shared
    for size in (300, 20_000, 13_000, 12_288, 24_000):
        redistribute(columns(size))
    draft(batch())
    kinds = [what for what, _, _ in cuda.driver.history]
    assert kinds == ["set"] + 6 * ["launch"]
    assert max(shared_bytes for *_, shared_bytes in cuda.launched) > 48 * 1024
    assert cuda.driver.allowed == {"redistribute_kernel<float, Whole>": MORE_THAN_ALWAYS - 144}


def in_dtype(dtype: torch.dtype) -> None:
    """Every operator once with each option, and once with none."""
    for name in OPERATORS:
        operator, arguments = getattr(torch.ops.rdk, name), generators.call(name, dtype)
        schema = operator.default._schema.arguments
        operator(**arguments)
        if not name.endswith("_step"):  # whose rows are made for its options
            defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
            operator(**arguments | defaults)


def test_every_kernel_is_started_by_the_name_that_it_is_compiled_by(
    through_python: Installed,
) -> None:
    cuda = through_python()
    for dtype in generators.DTYPES:
        in_dtype(dtype)
        verify(limited(dtype))
        drawn = generators.call("verify_tree", dtype) | {"method": 0}
        torch.ops.rdk.verify_tree(**drawn)
        side = list(drawn)[list(drawn).index("draft_logits") : -1]
        torch.ops.rdk.verify_tree(**drawn | dict.fromkeys(side))
    pairs = ((torch.float16, torch.float32), (torch.bfloat16, torch.float32))
    for target, drafter in (*pairs, (torch.float32, torch.bfloat16)):
        mixed = generators.batch(generators.affinity("mixed-1", 60), [2, 1], dtype=drafter)
        mixed = mixed.replace(target_logits=mixed.target_logits.to(target))
        for logprobs in (0, 1):
            verify(mixed.replace(logprobs=logprobs))
        overlap(mixed)
    any_call()
    started = {kernel for kernel, *_ in cuda.launched}
    assert started == {name for entry in nvrtc.kernels().values() for name in entry["kernels"]}


# -------------------------------------------------------------------------------------- refusals


def test_without_a_starter_the_error_names_the_operator_and_what_to_do(
    emulated: ModuleType, through_python: Installed
) -> None:
    through_python()
    emulated.set_starter(None)
    for call, name in ((any_call, "step_keys"), (lambda: draft(batch()), "draft")):
        with pytest.raises(RuntimeError, match=f"rdk::{name}: .*has no CUDA operators") as refused:
            call()
        assert "pip install rdk_cuda[cupy]" in str(refused.value)
        assert "rdk_cuda.integrations.cupy.enable()" in str(refused.value)


class Fails(EmulatedCuda):
    def launchKernel(self, *arguments: Any) -> None:  # noqa: N802
        raise ValueError("no such kernel é")


class KnowsNothing(EmulatedCuda):
    def deviceGetAttribute(self, attrib: int, device: int) -> Any:  # noqa: N802
        return "many"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"made_of": Fails}, "ValueError: no such kernel é"),
        ({"made_of": KnowsNothing}, "TypeError: "),
        ({"capability": (7, 5)}, r".*compute capability 7\.5; needs 8\.0 or later"),
    ],
)
def test_what_python_raises_is_the_operators_error(
    through_python: Installed, options: dict[str, Any], message: str
) -> None:
    through_python(**options)
    with pytest.raises(RuntimeError, match=f"rdk::step_keys: {message}"):
        any_call()


INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
import torch, rdk_cuda
from tests.proof.emulated.emulated_operators import emulator

class Starter:
    def machine(self, device):
        raise KeyboardInterrupt

emulator().set_starter(Starter())
emulator().start_through_python(True)
try:
    torch.ops.rdk_emulated.step_keys(torch.arange(3), torch.arange(3))
except RuntimeError:
    pass
for _ in range(10):
    pass
print("goes on")
"""


@pytest.mark.ci
def test_an_interrupt_while_a_kernel_is_compiled_ends_the_program(emulated: ModuleType) -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True
    )
    assert "goes on" not in result.stdout
    assert "KeyboardInterrupt" in result.stderr


def test_a_first_call_cannot_be_captured_into_a_graph(through_python: Installed) -> None:
    captures = [False]
    through_python(capturing=lambda: captures[0])
    captures[0] = True
    with pytest.raises(RuntimeError, match=r"step_keys_kernel is not loaded yet.* call once"):
        any_call()
    captures[0] = False
    expected = any_call()
    captures[0] = True
    assert torch.equal(any_call(), expected)


# ------------------------------------------------------------------------------------------ CuPy


def test_cupys_functions_and_constants_are_the_emulated_ones() -> None:
    cuda = pytest.importorskip("cupy.cuda")
    for name in [name for name in vars(EmulatedCuda) if not name.startswith("_")]:
        theirs = getattr(cuda.driver if hasattr(cuda.driver, name) else cuda.runtime, name)
        ours = getattr(EmulatedCuda, name)
        if callable(ours):
            signature = re.match(rf"{name}\((.*?)\)", theirs.__doc__)
            assert signature is not None, name
            arguments = [argument.split()[-1] for argument in signature[1].split(",")]
            assert arguments == list(inspect.signature(ours).parameters)[1:], name
        else:
            assert ours == theirs, name
