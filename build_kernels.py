"""Compiles csrc/cuda/*.cu with nvcc through ninja, with any torch, and reads the results.

`torch.utils.cpp_extension.CUDAExtension` refuses a torch without CUDA; whether kernels compile, and
into how many registers, must be known there too.
"""

from __future__ import annotations

import ast
import fcntl
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
KERNELS = ROOT / "csrc" / "cuda"
DEFAULT_ARCHS = "80 86 89 90a 100 120"
DEFAULT_TOOLKIT = "/usr/local/cuda"
PLACES = f"in CUDA_HOME, on the PATH or in {DEFAULT_TOOLKIT}"  # where nvcc is looked for


def assigned(file: str, name: str) -> Any:
    """The literal that a module of the package assigns to a name, without importing the package."""
    source = (ROOT / "rdk_cuda" / file).read_text(encoding="utf-8")
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    sys.exit(f"rdk_cuda/{file} does not assign {name}.")


# What decides the bits of a result is the same for both compilers.
FLAGS = [
    *assigned("integrations/cupy/nvrtc.py", "OPTIONS"),
    "-O3",
    "-Xptxas=-v",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
]

RULE = """\
rule nvcc
  command = {nvcc} {flags} $target -MD -MF $out.d $in -o $out >$out.log 2>&1 || ! cat $out.log
  description = nvcc $what
  depfile = $out.d
  deps = gcc
"""


@dataclass(frozen=True)
class Resources:
    """What one kernel takes on one architecture, in the words of ptxas."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


def architectures(nvcc: str | None = None) -> list[str]:
    """RDK_ARCHS, or torch's TORCH_CUDA_ARCH_LIST, or what the project supports and nvcc knows."""
    given = os.environ.get("RDK_ARCHS", "").replace(";", " ").split()
    if given == ["native"]:
        return native_architectures()
    listed = [] if given else re.split(r"[ ;,]+", os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    for arch in filter(None, listed):
        if not (match := re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", arch)):
            sys.exit(
                f"TORCH_CUDA_ARCH_LIST has {arch!r}; rdk_cuda reads numbers such as 8.0 and 9.0a. "
                f"Set RDK_ARCHS to some of {DEFAULT_ARCHS}, or to native."
            )
        if int(match[1]) >= 8:
            given.append("".join(match.groups("")[:3]))
    if not given:
        return known_architectures(nvcc or find_nvcc())
    for arch in given:
        if not re.fullmatch(r"\d{2,3}[af]?", arch) or int(arch.rstrip("af")) < 80:
            sys.exit(
                f"RDK_ARCHS has {arch!r}; it needs compute capabilities from 80 on, such as "
                f"{DEFAULT_ARCHS}, or native for those of this machine's GPUs."
            )
    return given


def native_architectures() -> list[str]:
    """Those of the GPUs that are here; ends the process where there is none."""
    asks = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = (
        subprocess.run(asks, capture_output=True, text=True).stdout if shutil.which(asks[0]) else ""
    )
    if not (capabilities := sorted({int(c.replace(".", "")) for c in found.split()})):
        sys.exit("RDK_ARCHS is native, but nvidia-smi finds no GPU; name compute capabilities.")
    return ["90a" if capability == 90 else str(capability) for capability in capabilities]


def known_architectures(nvcc: str) -> list[str]:
    """Those of the project that nvcc knows; says what is left out."""
    listed = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True).stdout
    newest = max(map(int, re.findall(r"compute_(\d+)", listed)), default=999)
    archs = DEFAULT_ARCHS.split()
    known = [arch for arch in archs if int(arch.rstrip("af")) <= newest]
    if left_out := " ".join(archs[len(known) :]):
        version = nvcc_version(nvcc)
        print(f"nvcc {version} does not know {left_out}: built without.", file=sys.stderr)
    return known


def sources() -> list[Path]:
    """Every kernel's file, in order."""
    return sorted(KERNELS.glob("*.cu"))


def run_time_sources() -> list[Path]:
    """What CuPy compiles at run time, which a package brings along."""
    csrc = KERNELS.parent
    cuda = [*KERNELS.glob("*.h"), *KERNELS.glob("*.cu*")]
    return sorted([*csrc.glob("*.h"), *(csrc / "common").iterdir(), *cuda])


@functools.cache
def nvccs() -> list[str]:
    """The compilers that are found: where torch looks for one, and the first on the PATH."""
    folders = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), DEFAULT_TOOLKIT]
    named = [shutil.which("nvcc", path=f"{folder}/bin") for folder in folders if folder]
    found = [*named[:-1], shutil.which("nvcc"), named[-1]]
    return list(dict.fromkeys(path for path in found if path is not None))


def find_nvcc(major: str | None = None) -> str:
    """The first compiler, or the first of this CUDA if there is one; ends the process without."""
    if not nvccs():
        sys.exit(
            f"Compiling the kernels needs nvcc of CUDA 12 or later, {PLACES}; it is not there."
        )
    return next((n for n in nvccs() if nvcc_version(n).split(".")[0] == major), nvccs()[0])


def toolkit_folders(nvcc: str) -> tuple[Path, Path]:
    """The toolkit's own include and library folders, wherever nvcc really is."""
    plan = subprocess.run([nvcc, "-dryrun", "x.cu"], capture_output=True, text=True).stderr
    top = re.search(r"^#\$ TOP=(.*)$", plan, re.MULTILINE)
    if top is None:
        sys.exit(f"{nvcc} did not say where its toolkit is: {plan.strip()}")
    folder = Path(top[1]).resolve()
    (target,) = list(folder.glob("targets/*-linux"))[:1] or [folder]
    library = target / "lib" if (target / "lib").exists() else folder / "lib64"
    return target / "include", library


def compile_objects(folder: Path, archs: Sequence[str], nvcc: str) -> list[Path]:
    """An object a kernel file for the host's linker: code for every architecture, and PTX of the
    newest for those that come after it."""
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
    if archs[-1].isdigit():
        codes.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
    # Compressed, because lines make code three times as large.
    target = ["-c", "-Xfatbin=-compress-all", "--threads=2", *codes]
    outputs = {folder / f"{source.stem}.o": (source, target) for source in sources()}
    run_ninja(folder, outputs, nvcc)
    return list(outputs)


def compile_cubins(folder: Path, archs: Sequence[str]) -> dict[tuple[str, str], Path]:
    """A cubin for each kernel file and architecture, by (file's stem, architecture)."""
    cubins = {
        (source.stem, arch): folder / f"{source.stem}.sm_{arch}.cubin"
        for source in sources()
        for arch in archs
    }
    outputs = {
        path: (
            KERNELS / f"{stem}.cu",
            ["-cubin", f"-gencode=arch=compute_{arch},code=sm_{arch}"],
        )
        for (stem, arch), path in cubins.items()
    }
    run_ninja(folder, outputs)
    if unreported := [path for path in cubins.values() if not reports(path)]:
        for path in unreported:
            path.unlink()
        run_ninja(folder, outputs)
    return cubins


def reports(cubin: Path) -> list[str]:
    """What ptxas said of each kernel of a cubin; nothing if its log was cut off."""
    log = Path(f"{cubin}.log")
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    return text.split("Compiling entry function '")[1:]


def run_ninja(
    folder: Path, outputs: dict[Path, tuple[Path, list[str]]], nvcc: str | None = None
) -> None:
    """Compiles what is not up to date, MAX_JOBS at once; ends the process where that fails.

    One process at a time: ninja has no lock, and a second one would write over the logs of the
    first while they are read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run_ninja(folder, outputs, nvcc or find_nvcc())


def _run_ninja(folder: Path, outputs: dict[Path, tuple[Path, list[str]]], nvcc: str) -> None:
    # The compiler of the rest, where one is named.
    host = ["-ccbin", shlex.quote(os.environ["CXX"])] if os.environ.get("CXX") else []
    flags = " ".join([*FLAGS, *host])
    lines = ["ninja_required_version = 1.5", RULE.format(nvcc=shlex.quote(nvcc), flags=flags)]
    for output, (source, target) in outputs.items():
        lines += [
            f"build {escape(output)}: nvcc {escape(source)}",
            f"  target = {' '.join(target)}",
            f"  what = {output.name}",
        ]
    (folder / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    ninja = shutil.which(
        "ninja", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if ninja is None:
        sys.exit("Compiling the kernels needs ninja; install it with `pip install ninja`.")
    jobs = ["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else []
    if subprocess.run([ninja, "-C", str(folder), *jobs], stdout=sys.stderr).returncode != 0:
        sys.exit("Compiling the kernels failed; nvcc's messages are above.")


def escape(path: Path) -> str:
    """A path as ninja reads it."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def resources(cubins: dict[tuple[str, str], Path]) -> dict[tuple[str, str], Resources]:
    """What ptxas reported for every kernel, by (kernel, architecture)."""
    found = {}
    for (_, arch), cubin in cubins.items():
        for report in reports(cubin):
            name = readable(report.split("'")[0])
            found[name, arch] = Resources(
                registers=number(r"Used (\d+) registers", report),
                shared_bytes=number(r"(\d+) bytes smem", report),
                stack_bytes=number(r"(\d+) bytes stack frame", report),
                spill_bytes=number(r"(\d+) bytes spill stores", report)
                + number(r"(\d+) bytes spill loads", report),
            )
    return dict(sorted(found.items(), key=lambda entry: entry[0][0]))


def number(pattern: str, text: str) -> int:
    """What the pattern's group says, 0 where it does not occur."""
    match = re.search(pattern, text)
    return int(match[1]) if match else 0


def readable(mangled: str) -> str:
    """A kernel's name with its template arguments, as in `verify_kernel<float, float, Whole>`."""
    names = {"f": "float"}
    match = re.search(r"\d+([a-z_]+_kernel)(?:I(.*?)EEv)?", mangled)
    if match is None:
        return mangled
    arguments: list[str] = []
    rest = match[2] or ""
    while rest:
        if rest[0] in names:
            arguments, rest = [*arguments, names[rest[0]]], rest[1:]
        elif nested := re.match(r"NS_(\d+)", rest):
            end = nested.end() + int(nested[1])
            arguments, rest = [*arguments, rest[nested.end() : end]], rest[end:].removeprefix("E")
        else:  # a substitution, S2_ for one: the same type again
            arguments, rest = [*arguments, arguments[-1]], rest[rest.index("_") + 1 :]
    return match[1] + (f"<{', '.join(arguments)}>" if arguments else "")


def table(found: dict[tuple[str, str], Resources]) -> str:
    """A line for each kernel and architecture."""
    head = ("kernel", "architecture", "registers", "shared", "stack", "spills")
    rows = [head] + [
        (
            name,
            f"sm_{arch}",
            str(used.registers),
            str(used.shared_bytes),
            str(used.stack_bytes),
            str(used.spill_bytes),
        )
        for (name, arch), used in found.items()
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def golden(found: dict[tuple[str, str], Resources]) -> str:
    """The text of tests/proof/packaging/kernel_resources.json: by kernel and architecture."""
    entries: dict[str, dict[str, str]] = {}
    for (name, arch), used in found.items():
        spills = f", {used.spill_bytes} bytes spilled" if used.spill_bytes else ""
        entries.setdefault(name, {})[f"sm_{arch}"] = (
            f"{used.registers} registers, {used.shared_bytes} bytes shared{spills}"
        )
    return json.dumps({"nvcc": nvcc_version(), "kernels": entries}, indent=2) + "\n"


@functools.cache
def nvcc_version(nvcc: str | None = None) -> str:
    """As in `13.0`."""
    asks = [nvcc or find_nvcc(), "--version"]
    match = re.search(
        r"release (\d+\.\d+)", subprocess.run(asks, capture_output=True, text=True).stdout
    )
    return match[1] if match else "unknown"
