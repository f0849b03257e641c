"""The CUDA kernels compile for every architecture, and into what they were written to become.

No GPU is needed: nvcc compiles, NVIDIA's disassembler reads the result.
"""

from __future__ import annotations

import difflib
import json
import shutil
from pathlib import Path

import pytest

import build_kernels
from build_kernels import Resources

from .sass import TOOLS, find_tool, instructions, loads_under_way, local_memory

GOLDEN = Path(__file__).with_name("kernel_resources.json")
REWRITE = f"python setup.py build_kernels --json tests/build/{GOLDEN.name}"
ARCHS = build_kernels.DEFAULT_ARCHS.split()
# More would leave one block of 256 threads to a multiprocessor, and too few loads under way.
MOST_REGISTERS = 128
# A lane's 32 columns of a chunk; of gather_logits 8 columns of two rows, and four steps of them.
VECTOR_LOADS = {
    "draft_kernel<float>": 8,
    "draft_kernel<BFloat16Bits>": 4,
    "draft_kernel<Float16Bits>": 4,
    "redistribute_kernel<float>": 8,
    "redistribute_kernel<BFloat16Bits>": 4,
    "redistribute_kernel<Float16Bits>": 4,
    "verify_kernel<float, float>": 8,
    "verify_kernel<BFloat16Bits, BFloat16Bits>": 4,
    "verify_kernel<Float16Bits, Float16Bits>": 4,
    "gather_logits_kernel<float>": 8,
    "gather_logits_kernel<BFloat16Bits>": 8,
    "gather_logits_kernel<Float16Bits>": 8,
}
ELEMENT_BY_ELEMENT = {
    "verify_kernel<AnyDtype, AnyDtype>": "stands for the rare mixtures of two dtypes",
    "step_seeds_kernel": "reads two numbers a thread",
}


@pytest.fixture(scope="module")
def cubins() -> dict[tuple[str, str], Path]:
    """In build/, where `python setup.py build_kernels` puts them; ninja compiles what changed."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    return build_kernels.compile_cubins(build_kernels.ROOT / "build" / "kernels", ARCHS)


@pytest.fixture(scope="module")
def resources(cubins: dict[tuple[str, str], Path]) -> dict[tuple[str, str], Resources]:
    return build_kernels.resources(cubins)


@pytest.fixture(scope="module")
def codes(cubins: dict[tuple[str, str], Path]) -> dict[tuple[str, str], list[str]]:
    """Every kernel's instructions, by (kernel, architecture)."""
    for tool, package in TOOLS.items():
        if find_tool(tool) is None:
            pytest.skip(f"{tool} is not installed; it is in {package} on PyPI")
    return {
        (build_kernels.readable(name), arch): found
        for (_, arch), cubin in cubins.items()
        for name, found in instructions(cubin).items()
    }


def test_every_kernel_compiles_for_every_architecture(
    resources: dict[tuple[str, str], Resources],
) -> None:
    assert set(resources) == {
        (name, arch) for name in [*VECTOR_LOADS, *ELEMENT_BY_ELEMENT] for arch in ARCHS
    }


def test_nothing_spills(resources: dict[tuple[str, str], Resources]) -> None:
    spilled = {key: used for key, used in resources.items() if used.spill_bytes or used.stack_bytes}
    assert spilled == {}


def test_two_blocks_fit_on_a_multiprocessor(resources: dict[tuple[str, str], Resources]) -> None:
    assert {key: r for key, r in resources.items() if r.registers > MOST_REGISTERS} == {}


def test_registers_and_shared_memory_are_the_recorded_ones(
    resources: dict[tuple[str, str], Resources],
) -> None:
    recorded = GOLDEN.read_text(encoding="utf-8")
    made_by = json.loads(recorded)["nvcc"]
    if made_by != build_kernels.nvcc_version():
        pytest.skip(f"recorded with nvcc {made_by}; this is {build_kernels.nvcc_version()}")
    actual = build_kernels.golden(resources)
    difference = "\n".join(
        difflib.unified_diff(
            recorded.splitlines(), actual.splitlines(), GOLDEN.name, "compiled", lineterm="", n=3
        )
    )
    assert difference == "", f"\n{difference}\nIf that is meant: {REWRITE}"


def test_no_instruction_touches_local_memory(codes: dict[tuple[str, str], list[str]]) -> None:
    found = {key: sorted(set(local_memory(sequence))) for key, sequence in codes.items()}
    assert {key: touched for key, touched in found.items() if touched} == {}


@pytest.mark.parametrize("kernel", VECTOR_LOADS)
def test_logits_are_read_16_bytes_a_lane_several_at_once(
    codes: dict[tuple[str, str], list[str]], kernel: str
) -> None:
    under_way = {arch: loads_under_way(codes[kernel, arch]) for arch in ARCHS}
    assert {arch: n for arch, n in under_way.items() if n < VECTOR_LOADS[kernel]} == {}


@pytest.mark.parametrize("kernel", [name for name in VECTOR_LOADS if name[0] in "dv"])
def test_the_next_logits_are_on_their_way_while_these_are_summed(
    codes: dict[tuple[str, str], list[str]], kernel: str
) -> None:
    """draft and verify copy ahead into shared memory, 16 bytes a lane, past the L1 cache."""
    for arch in ARCHS:
        copies = [code for code in codes[kernel, arch] if code.startswith("LDGSTS.E")]
        assert copies, arch
        assert all(".128" in code and "BYPASS" in code for code in copies), arch


def test_the_reader_of_instructions_tells_good_code_from_bad() -> None:
    """A negative control of the gate itself."""
    scattered = ["LDG.E.128.CONSTANT", "FADD", "BRA", "LDG.E.128", "EXIT"]
    together = ["LDG.E.128.CONSTANT", "LDGSTS.E.BYPASS.128", "LDG.E.U16", "FADD", "BRA"]
    assert loads_under_way(scattered) == 1
    assert loads_under_way(together) == 2
    assert local_memory(["LDG.E", "STL.64", "FADD"]) == ["STL.64"]
