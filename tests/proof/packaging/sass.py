"""What the assembler made of the kernels, read from cubins with NVIDIA's disassembler from PyPI."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "nvidia-cuda-nvdisasm"
KERNEL = re.compile(r"^\.text\.(\S+):")
SUBROUTINE = re.compile(r"^(\$__internal_\S+):")  # the compiler's own, such as a division's
LINE = re.compile(r'//## File "([^"]*)", line (\d+)')
ADDRESS = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+")  # of an instruction
# What nvdisasm remarks comes before the semicolon: (*"SpillRefill"*).
INSTRUCTION = re.compile(
    ADDRESS.pattern + r"(@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*(?:\(\*.*\*\))? ?;"
)
NEAR = 16  # instructions, between a reciprocal and what refines it
CONTROL_FLOW = ("BRA", "BRX", "CALL", "RET", "EXIT", "BSYNC", "BAR", "WARPSYNC")
MEMORY = ("LD", "LDG", "LDGSTS", "ST", "STG", "ATOM", "ATOMG", "RED", "CCTL", "UBLKCP", "UTMALDG")


@dataclass(frozen=True)
class Instruction:
    """One instruction, and the line of source that it was made for, where that is known."""

    code: str
    operands: str = ""
    file: str = ""
    line: int = 0
    guarded: bool = False  # by a predicate

    @property
    def name(self) -> str:
        """The operation without what modifies it."""
        return self.code.split(".")[0]

    @property
    def registers(self) -> list[int]:
        """Every register that an operand names, in order."""
        return [int(number) for number in re.findall(r"\bR(\d+)\b", self.operands)]

    def is_wide(self) -> bool:
        """Whether it moves 16 bytes or more."""
        return ".128" in self.code or ".256" in self.code


def find_nvdisasm() -> Path | None:
    """The disassembler of the PyPI package, or the one of a toolkit on the PATH."""
    try:
        for file in importlib.metadata.files(PACKAGE) or []:
            path = Path(str(file.locate()))
            if path.name == "nvdisasm" and os.access(path, os.X_OK):
                return path
    except importlib.metadata.PackageNotFoundError:
        pass
    found = shutil.which("nvdisasm")
    return Path(found) if found else None


def instructions(cubin: Path) -> dict[str, list[Instruction]]:
    """Every kernel's instructions, in order, by its mangled name."""
    tool = find_nvdisasm()
    assert tool, "find_nvdisasm was to be asked first"
    result = subprocess.run([tool, "-c", "-g", cubin], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    kernels: dict[str, list[Instruction]] = {}
    file, line = "", 0
    for text in result.stdout.splitlines():
        if match := KERNEL.match(text):
            sequence = kernels.setdefault(match[1], [])
            file, line = "", 0
        elif match := SUBROUTINE.match(text):
            file, line = match[1], 0
        elif match := LINE.search(text):
            file, line = match[1], int(match[2])
        elif match := INSTRUCTION.match(text):
            sequence.append(Instruction(match[2], match[3], file, line, bool(match[1])))
        else:
            assert not ADDRESS.match(text), f"an instruction that cannot be read: {text.strip()}"
    return kernels


def local_memory(sequence: list[Instruction]) -> list[str]:
    """The instructions that read or write local memory."""
    return [each.code for each in sequence if each.name in ("LDL", "STL")]


def touches_nothing(sequence: list[Instruction]) -> bool:
    """Whether it neither branches nor reads or writes global memory."""
    return not any(each.name in (*MEMORY, *CONTROL_FLOW) for each in sequence)


def loads_before_use(sequence: list[Instruction], name: str) -> list[int]:
    """How many 16-byte global loads are issued before the first of them is waited for, run by run.

    Args:
        name: LDG, which loads into registers and is waited for by whatever names one of them; or
            LDGSTS (cp.async), which copies into shared memory and is waited for by DEPBAR.
    """
    runs = [0]
    loaded: set[int] = set()
    for each in sequence:
        waits = each.name in CONTROL_FLOW or each.name == "DEPBAR"
        if waits or loaded & set(each.registers):
            runs.append(0)
            loaded.clear()
        if each.name == name and each.is_wide():
            runs[-1] += 2 if ".256" in each.code else 1
            if name == "LDG":
                into = re.findall(r"\bR(\d+)\b", each.operands.split("[")[0])
                loaded.update(int(register) + i for register in into for i in range(4))
    return [run for run in runs if run > 0]


def divides(instruction: Instruction, before: list[Instruction]) -> bool:
    """Whether it refines a reciprocal as the hardware gives it: only a division's own code does.

    Its line may be that of a statement nearby: nvcc 13.0 gives divisions in `cut.cuh` the name of
    another file on sm_120. A branch decides whether what was refined is the quotient, so that no
    sum with it can stand before the branch.
    """
    refined: set[int] = set()
    for each in [*before, instruction]:
        is_refined = each.code == "MUFU.RCP" or (
            each.name == "FFMA" and not refined.isdisjoint(each.registers[1:])
        )
        if each.name in CONTROL_FLOW:
            refined.clear()
        elif is_refined:
            refined.add(each.registers[0])
        else:
            refined -= set(each.registers[:1])
    return instruction.name == "FFMA" and is_refined


def exponentiates(instruction: Instruction) -> bool:
    """Whether it is one of the four multiply-adds of `expf`, by their rounding or constant.

    Inlined, they can have the line of the argument: nvcc 13.0 does that on sm_90a.
    """
    reduction = r"FFMA\.(SAT|RM) |, -?(1\.44269502162933|1\.92596303350001)"
    return bool(re.search(reduction, f"{instruction.code} {instruction.operands}"))


def contracted(sequence: list[Instruction]) -> Iterator[str]:
    """The lines whose product and sum became one operation though no `fmaf` stands there.

    Divisions and exponentials are made of such operations themselves.
    """
    for place, each in enumerate(sequence):
        if each.name != "FFMA" or each.file.startswith("$__internal_"):
            continue
        if exponentiates(each) or divides(each, sequence[max(0, place - NEAR) : place]):
            continue
        if not each.file:
            yield "without a line"
            continue
        path = Path(each.file)
        text = path.read_text(encoding="utf-8").splitlines()[each.line - 1]
        if not re.search(r" / |expf\(|fmaf\(", text.split("//")[0]):
            yield f"{path.name}:{each.line}: {text.strip()}"
