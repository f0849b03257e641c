"""What the assembler made of the kernels, read from cubins with NVIDIA's tools from PyPI."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

TOOLS = {"cuobjdump": "nvidia-cuda-cuobjdump", "nvdisasm": "nvidia-cuda-nvdisasm"}
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
CONTROL_FLOW = ("BRA", "BRX", "CALL", "RET", "EXIT", "BSYNC", "BAR", "WARPSYNC")


def find_tool(name: str) -> Path | None:
    """The tool of the PyPI package, or the one of a toolkit on the PATH."""
    try:
        for file in importlib.metadata.files(TOOLS[name]) or []:
            path = Path(str(file.locate()))
            if path.name == name and os.access(path, os.X_OK):
                return path
    except importlib.metadata.PackageNotFoundError:
        pass
    found = shutil.which(name)
    return Path(found) if found else None


def instructions(cubin: Path) -> dict[str, list[str]]:
    """Every kernel's instructions by its mangled name: operation codes, in order."""
    tools = [find_tool(name) for name in TOOLS]
    assert all(tools), "find_tool was to be asked first"
    folders = [str(tool.parent) for tool in tools if tool]  # cuobjdump calls nvdisasm
    result = subprocess.run(
        [str(tools[0]), "-sass", str(cubin)],
        env=os.environ | {"PATH": os.pathsep.join([*folders, os.environ["PATH"]])},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    kernels: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        if "Function : " in line:
            codes = kernels.setdefault(line.split("Function : ")[1].strip(), [])
        elif match := INSTRUCTION.match(line):
            codes.append(match[1])
    return kernels


def local_memory(codes: list[str]) -> list[str]:
    """The instructions that read or write local memory."""
    return [code for code in codes if code.split(".")[0] in ("LDL", "STL")]


def loads_under_way(codes: list[str]) -> int:
    """The most 16-byte (or wider) global loads between two branches, so issued back to back.

    LDG loads into registers, LDGSTS (cp.async) into shared memory.
    """
    most = run = 0
    for code in codes:
        if code.split(".")[0] in CONTROL_FLOW:
            run = 0
        if code.startswith(("LDG.E", "LDGSTS.E")) and (".128" in code or ".256" in code):
            run += 2 if ".256" in code else 1
            most = max(most, run)
    return most
