"""`make wheels`: a wheel for CPUs, one for each CUDA whose nvcc is found, tried without a compiler.

    python -m tests.proof.packaging.wheels DIR

DIR/cpu, DIR/cu130 and so on get a wheel each, for every Python from 3.10 and torch from 2.11; that
for CPUs, for every glibc from 2.28. So does DIR/cpu-aarch64, for the CPUs of GH200 and the like, if
Debian's g++-aarch64-linux-gnu is there. Kernels for all six architectures take six minutes on two
quiet cores.
"""

from __future__ import annotations

import argparse
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import build_kernels as kernels

from .distributions import ROOT, environment_with, run

# README's line with the operator, and whether its rows are distributions; the installed package's.
TRIED = """
import pathlib, sys, torch, rdk_cuda
assert pathlib.Path(rdk_cuda.__file__).is_relative_to(sys.prefix), rdk_cuda.__file__
affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([4, 0, 2], target_size=5))
columns = (*affinity.by_target, affinity.row_top)
rows = torch.ops.rdk.redistribute(torch.randn(2, 3), torch.ones(2), *columns)
assert torch.allclose(rows.sum(1), torch.ones(2)), rows
print(rdk_cuda.build_info()["cuda_reason"])
"""
OLDEST = 28  # of glibc's versions 2.x
CROSS = "aarch64-linux-gnu-"  # how names of a cross-compiler begin
# What the operators ask of torch's libraries: the stable ABI, and functions of newer libstdc++.
EXPORTED = ("aoti_torch_", "torch_", "_ZNSt", "_ZSt")


def platform_tag(wheel: Path) -> str:
    """The first that promises what a wheel asks of glibc and libstdc++, `OLDEST` at least.

    NVIDIA's static runtime takes symbols of the glibc that it is linked beside.
    """
    done = run(["-m", "auditwheel", "show", "--json", str(wheel)], ROOT)
    found = re.search(r'"sym_tag": "manylinux_2_(\d+)_(\w+)"', done.stdout)
    if found is None:
        sys.exit(f"{wheel.name}: {done.stderr or done.stdout}")
    return f"manylinux_2_{max(OLDEST, int(found[1]))}_{found[2]}"


def cross_environment(folder: Path) -> dict[str, str]:
    """What compiles and links for aarch64: torch's libraries for it export what those here do."""
    for name in ("libc10.so", "libtorch.so", "libtorch_cpu.so"):
        library = Path(torch.__file__).parent / "lib" / name
        nm = ["nm", "-D", "--defined-only", "--format=just-symbols", library]
        listed = subprocess.run(nm, check=True, capture_output=True, text=True).stdout.split()
        source = "".join(f".globl {n}\n{n}:\n" for n in listed if n.startswith(EXPORTED))
        gcc = [f"{CROSS}gcc", "-shared", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([*gcc, "-x", "assembler", "-"], check=True, input=source, text=True)
    compilers = {"CC": f"{CROSS}gcc", "CXX": f"{CROSS}g++"}
    names = {"_PYTHON_HOST_PLATFORM": "linux-aarch64", "LDFLAGS": f"-L{folder}"}
    return {"RDK_CUDA": "off", **compilers, **names}


def build(name: str, folder: Path, **environment: str) -> tuple[Path, float]:
    """Build one wheel into `folder`/`name`, with its tag, and return it with the seconds taken."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        pip = ["-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
        done = run([*pip, "--wheel-dir", made, "."], ROOT, **environment)
        if done.returncode != 0:
            sys.exit(f"{name}: {done.stderr}")
        (plain,) = Path(made).iterdir()
        shutil.rmtree(folder / name, ignore_errors=True)
        tags = ["-m", "wheel", "tags", "--platform-tag", platform_tag(plain), str(plain)]
        done = run(tags, ROOT)
        tagged = folder / name / done.stdout.strip()
        tagged.parent.mkdir(parents=True)
        shutil.copyfile(Path(made) / tagged.name, tagged)
    return tagged, time.monotonic() - began


def tried(wheel: Path) -> str:
    """Install a wheel where no compiler is, use it, and return why it has CUDA operators or not."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment_with(wheel, Path(folder))
        done = subprocess.run(
            [python, "-c", TRIED],
            cwd=folder,
            env={"PATH": "/nowhere"},
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(f"{wheel}: {done.stderr}")
        return done.stdout.strip()


def main() -> None:
    """Build, try and list; see above."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.packaging.wheels", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args().folder.resolve()
    kinds = {"cpu": {"RDK_CUDA": "off"}}
    for nvcc in kernels.nvccs():
        name = "cu" + kernels.nvcc_version(nvcc).replace(".", "")
        toolkit = str(Path(kernels.toolkit_folders(nvcc)[0]).parents[2])
        kinds.setdefault(name, {"RDK_CUDA": "on", "CUDA_HOME": toolkit})
    print(f"{'wheel':<12} {'MB':>6} {'minutes':>8}  tag; beside torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as libraries:
        if shutil.which(f"{CROSS}g++") and platform.machine() != "aarch64":
            kinds["cpu-aarch64"] = cross_environment(Path(libraries))
        for name, environment in kinds.items():
            wheel, seconds = build(name, folder, **environment)
            megabytes = wheel.stat().st_size / 1e6
            said = tried(wheel) if "CXX" not in environment else f"not run on {platform.machine()}"
            told = f"{wheel.stem.split('-')[-1]}; {said}"
            print(f"{name:<12} {megabytes:>6.1f} {seconds / 60:>8.1f}  {told}", flush=True)


if __name__ == "__main__":
    main()
