"""The CUDA kernels compile for every architecture, and into what they were written to become.

No GPU is needed: nvcc compiles, NVIDIA's disassembler reads the result.
"""

from __future__ import annotations

import difflib
import json
import os
import shutil
from pathlib import Path

import pytest

import build_kernels
from build_kernels import Resources
from rdk_cuda.integrations.cupy import nvrtc

from . import kernel_code
from .sass import (
    PACKAGE,
    Instruction,
    contracted,
    find_nvdisasm,
    instructions,
    loads_before_use,
    local_memory,
    touches_nothing,
)

pytestmark = pytest.mark.ci

GOLDEN = Path(__file__).with_name("kernel_resources.json")
REWRITE = f"python setup.py build_kernels --json tests/proof/packaging/{GOLDEN.name}"
EVERY_ARCH = build_kernels.DEFAULT_ARCHS.split()


# Every one takes two cores ten minutes; `make night`, and whoever changes a kernel, says so by
# RDK_ARCHS, as when building.
ARCHS = build_kernels.architectures() if "RDK_ARCHS" in os.environ else ["90a"]
# More would leave one block of 256 threads to a multiprocessor, and too few loads under way.
MOST_REGISTERS = 128
ELEMENT_BY_ELEMENT = {
    "name_tokens": "reads ids, each from a place that another one may say",
    "overlap_backward": "a lane takes a column",
    "step_keys": "reads two numbers a thread",
}
# What loads a lane's columns, and how many it takes of float32; of 16 bits, half as many. Most copy
# the 32 of a chunk; of gather_logits they are 8 columns of two rows, and four steps of them.
LOADS = {
    "redistribute": ("LDG", 8),
    "overlap": ("LDG", 8),
    "verify_shard": ("LDG", 8),
    "gather_logits": ("LDG", 16),
}
COPIES = ("LDGSTS", 8)


def loads_of(operator: str, kernel: str) -> tuple[str, int]:
    name, of_float = LOADS.get(operator, COPIES)
    return name, of_float if f"{operator}_kernel<float" in kernel else of_float // 2


KERNELS = {
    kernel: operator for operator, entry in nvrtc.kernels().items() for kernel in entry["kernels"]
}
VECTOR_LOADS = {
    kernel: loads_of(operator, kernel)
    for kernel, operator in KERNELS.items()
    if operator not in ELEMENT_BY_ELEMENT
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
def codes(cubins: dict[tuple[str, str], Path]) -> dict[tuple[str, str], list[Instruction]]:
    """Every kernel's instructions, by (kernel, architecture)."""
    if find_nvdisasm() is None:
        pytest.skip(f"nvdisasm is not installed; it is in {PACKAGE} on PyPI")
    return {
        (build_kernels.readable(name), arch): found
        for (_, arch), cubin in cubins.items()
        for name, found in instructions(cubin).items()
    }


def test_every_kernel_compiles_without_spills(
    resources: dict[tuple[str, str], Resources],
) -> None:
    """And so that two blocks fit on a multiprocessor."""
    assert set(resources) == {(name, arch) for name in KERNELS for arch in ARCHS}
    assert {key: r for key, r in resources.items() if r.spill_bytes or r.stack_bytes} == {}
    assert {key: r for key, r in resources.items() if r.registers > MOST_REGISTERS} == {}


def test_static_shared_memory_is_what_the_launch_headers_say(
    resources: dict[tuple[str, str], Resources],
) -> None:
    """Plans leave so much of a block's limit to it: what an operator's largest kernel has.

    Some architectures need less of it.
    """
    for entry in nvrtc.kernels().values():
        compiled = [
            resources[name, arch].shared_bytes for arch in ARCHS for name in entry["kernels"]
        ]
        assert max(compiled) == entry["static_shared_bytes"], entry["kernels"]


def test_registers_and_shared_memory_are_the_recorded_ones(
    resources: dict[tuple[str, str], Resources],
) -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert "spilled" not in str(golden)  # of architectures that only the night compiles, too
    if golden["nvcc"] != build_kernels.nvcc_version():
        pytest.skip(f"recorded with nvcc {golden['nvcc']}; this is {build_kernels.nvcc_version()}")
    for by_arch in golden["kernels"].values():
        assert list(by_arch) == [f"sm_{arch}" for arch in EVERY_ARCH]
        for arch in set(EVERY_ARCH) - set(ARCHS):
            del by_arch[f"sm_{arch}"]
    recorded = json.dumps(golden, indent=2)
    actual = build_kernels.golden(resources)
    difference = "\n".join(
        difflib.unified_diff(
            recorded.splitlines(), actual.splitlines(), GOLDEN.name, "compiled", lineterm="", n=3
        )
    )
    assert difference == "", f"\n{difference}\nIf that is meant: {REWRITE}"


def test_each_kernel_has_the_recorded_number_of_instructions(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    recorded = json.loads(kernel_code.TABLE.read_text(encoding="utf-8"))
    of_one = {name: code for (name, arch), code in codes.items() if arch == kernel_code.ARCH}
    if recorded["nvcc"] != build_kernels.nvcc_version() or not of_one:
        pytest.skip(f"recorded with nvcc {recorded['nvcc']} for {recorded['architecture']}")
    again = "if that is meant: python -m tests.proof.packaging.kernel_code"
    assert recorded == kernel_code.content(of_one), again


def test_no_instruction_touches_local_memory(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    found = {key: sorted(set(local_memory(sequence))) for key, sequence in codes.items()}
    assert {key: touched for key, touched in found.items() if touched} == {}


@pytest.mark.parametrize("kernel", VECTOR_LOADS)
def test_every_load_of_a_chunk_is_under_way_before_the_first_is_used(
    codes: dict[tuple[str, str], list[Instruction]], kernel: str
) -> None:
    """16 bytes a lane. Those that stream rows copy chunks ahead, past the L1 cache."""
    name, expected = VECTOR_LOADS[kernel]
    runs = {arch: loads_before_use(codes[kernel, arch], name) for arch in ARCHS}
    ways = 2 if kernel.startswith("gather_logits") else 1  # a warp alone, and together
    assert {arch: found for arch, found in runs.items() if found.count(expected) < ways} == {}
    for arch in ARCHS if name == "LDGSTS" else ():
        copies = [each for each in codes[kernel, arch] if each.name == "LDGSTS"]
        assert all(each.is_wide() and "BYPASS" in each.code for each in copies), arch


def test_no_product_is_contracted_with_the_sum_that_follows(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    """Otherwise the compiler would decide, kernel by kernel, which sums are rounded once less."""
    found = {key: sorted(set(contracted(sequence))) for key, sequence in codes.items()}
    assert {key: lines for key, lines in found.items() if lines} == {}


def test_blocks_of_a_cluster_wait_for_each_other_where_there_are_clusters(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    """They arrive after a fence, and read behind the wait. In `draft` of rows that may be cut once;
    of others once more before they store into each other's shared memory, in code for plain rows
    and in code for the rest; in `redistribute` of plain rows in the same way. In `verify_tree` of
    fixed nodes when a row is summed and when it is known where the walk goes on, in code that the
    compiler may repeat."""
    for (kernel, arch), code in codes.items():
        names = [each.name for each in code if each.name in ("UCGABAR_ARV", "UCGABAR_WAIT")]
        times = len(names) // 2
        assert names == ["UCGABAR_ARV", "UCGABAR_WAIT"] * times, (kernel, arch)
        clusters = int(arch.rstrip("a")) >= 90
        if clusters and kernel.startswith("verify_tree") and "Drawn" not in kernel:
            assert times >= 2, (kernel, arch)
        else:
            of_operator = {"draft": (4, 1), "redistribute": (2, 0)}.get(kernel.split("_kernel")[0])
            expected = of_operator["Cut" in kernel] if of_operator and clusters else 0
            assert times == expected, (kernel, arch)


def test_an_early_launch_touches_no_memory_before_earlier_kernels_have_ended(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    """Nothing branches around the wait, and no load or store stands before it."""
    for (kernel, arch), code in codes.items():
        names = [each.name for each in code]
        assert names.count("ACQBULK") == names.count("PREEXIT") == (int(arch.rstrip("a")) >= 90)
        if "ACQBULK" in names:
            before = code[: names.index("ACQBULK")]
            assert touches_nothing(before), (kernel, arch)
            assert not code[len(before)].guarded, (kernel, arch)


def test_profilers_and_sanitizers_can_name_lines(
    codes: dict[tuple[str, str], list[Instruction]],
) -> None:
    for (kernel, arch), sequence in codes.items():
        source = build_kernels.KERNELS / f"{kernel.split('_kernel')[0]}.cu"
        assert {each.file for each in sequence} >= {str(source)}, arch


def test_the_reader_of_instructions_tells_good_code_from_bad() -> None:
    """A negative control of the gate itself."""
    load = Instruction("LDG.E.128.CONSTANT", "R4, desc[UR12][R20.64]")
    other = Instruction("LDG.E.128.CONSTANT", "R8, desc[UR12][R22.64]")
    product = Instruction("FMUL", "R20, R6, R1")
    assert loads_before_use([load, product, other, product], "LDG") == [1, 1]
    assert loads_before_use([load, other, product], "LDG") == [2]
    assert loads_before_use([load, Instruction("BRA"), other], "LDG") == [1, 1]
    assert loads_before_use([load, Instruction("FMUL", "R20, R1, R1"), other], "LDG") == [2]
    copy = Instruction("LDGSTS.E.BYPASS.128", "[R8], desc[UR12][R20.64]")
    assert loads_before_use([copy, copy, Instruction("DEPBAR.LE", "SB0, 0x1")], "LDGSTS") == [2]
    assert local_memory([load, Instruction("STL.64"), product]) == ["STL.64"]
    assert touches_nothing([product, Instruction("S2R", "R5, SR_CTAID.X")])
    for other_code in ("LDG.E", "STG.E", "LDGSTS.E", "ATOMG.E.ADD", "RED.E.ADD", "BRA", "EXIT"):
        assert not touches_nothing([product, Instruction(other_code)])
    name, statement = "softmax.cuh", "carry += __shfl_sync(kAllLanes, inclusive, kWarp - 1);"
    header = build_kernels.KERNELS / name
    lines = [text.strip() for text in header.read_text(encoding="utf-8").splitlines()]
    line = lines.index(statement) + 1
    fused = [Instruction("FFMA", "R0, R1, R2, R3", str(header), line)]
    assert list(contracted(fused)) == [f"{name}:{line}: {statement}"]
    division = [Instruction("MUFU.RCP", "R1, R9"), Instruction("FFMA", "R0, R9, R1, -1")]
    assert list(contracted(division)) == []
