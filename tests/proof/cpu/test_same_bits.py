"""Instruction sets and threads change no bit of any operator's result (DESIGN, "To the bit")."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from .arithmetic import Arithmetic
from .workload import THREADS

ROOT = Path(__file__).resolve().parents[3]


def python(arguments: list[str], capability: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"RDK_CPU_CAPABILITY": capability},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module", params=["small", pytest.param("all", marks=pytest.mark.night)])
def results(
    request: pytest.FixtureRequest,
    arithmetics: list[Arithmetic],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Tensor]]:
    """By instruction set, what `workload.py` computed with it."""
    folder = tmp_path_factory.mktemp("results")
    found = {}
    for name in (arithmetic.name for arithmetic in arithmetics):
        process = python(
            ["-m", "tests.proof.cpu.workload", str(folder / name), request.param], name
        )
        assert process.returncode == 0, process.stderr
        saved = torch.load(folder / name, weights_only=True)
        assert saved["capability"] == name
        found[name] = saved["results"]
    return found


def assert_same_bits(actual: Tensor, expected: Tensor, name: str) -> None:
    assert actual.dtype == expected.dtype, name
    same = actual == expected
    if actual.is_floating_point():
        same |= actual.isnan() & expected.isnan()
    assert same.all(), f"{name}: first difference at {(~same).nonzero()[0].tolist()}"


def test_instruction_sets_threads_and_where_rows_lie_change_no_bit(
    results: dict[str, dict[str, Tensor]],
) -> None:
    default = results["default"]
    for capability, found in results.items():
        for name, expected in default.items():
            assert_same_bits(found[name], expected, f"{capability}: {name}")
    one = {name[2:]: tensor for name, tensor in default.items() if name[0] == "1"}
    for name, tensor in default.items():
        assert_same_bits(tensor, one[name[2:]], name)
    assert len(default) == len(one) * len(THREADS)
    elsewhere = [name for name in default if ", elsewhere" in name]
    assert elsewhere
    for name in elsewhere:
        assert_same_bits(default[name], default[name.replace(", elsewhere", "")], name)


def test_these_are_results_that_could_differ(results: dict[str, dict[str, Tensor]]) -> None:
    """The control: not constants, and some drafts were accepted and some rejected."""
    found = results["default"]
    stats = found["1 virtual 2600 1"]
    assert stats.isfinite().any()
    assert stats[:, 1].unique().numel() > 1
    probs = found["1 virtual 2600 2"]
    assert probs[0].unique().numel() > 1000
    accepted = torch.cat([found[name].flatten() for name in found if name.endswith(" 4")])
    assert 0 < int((accepted > 0).sum()) < accepted.numel()
    if "1 direct 3" in found:
        assert (found["1 direct 3"][:, 0] >= 0).all()
        assert not found["1 direct 4"].any()


def test_an_unknown_instruction_set_is_refused_at_import() -> None:
    process = python(["-c", "import rdk_cuda"], "AVX2")
    assert process.returncode != 0
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: RDK_CPU_CAPABILITY is 'AVX2'; on this machine it must")
    assert "default" in last


def test_without_the_variable_it_is_the_best_there_is(arithmetics: list[Arithmetic]) -> None:
    code = "import rdk_cuda; print(rdk_cuda.build_info()['cpu_capability'])"
    assert python(["-c", code], "").stdout.strip() == arithmetics[0].name


@pytest.mark.night
def test_aarch64_gives_the_same_bits_in_its_emulator(tmp_path: Path) -> None:
    """Of redistribute, draft and verify, without torch; with Debian's cross-compiler and QEMU."""
    cross, emulator = "aarch64-linux-gnu-", ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
    if not (shutil.which(f"{cross}g++") and shutil.which(emulator[0])):
        pytest.skip("g++-aarch64-linux-gnu or qemu-user is not installed")
    sources = [Path(__file__).with_name("other_machine.cpp"), *(ROOT / "csrc/cpu").glob("*.cpp")]
    headers = ["-I", ROOT / "csrc", "-I", Path(torch.__file__).parent / "include"]
    flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-Wl,--wrap=exp,--wrap=log", *headers]
    hashes = []
    for prefix, runs in (("", []), (cross, emulator)):
        program = tmp_path / f"{prefix}operators"
        subprocess.run([f"{prefix}g++", *flags, *sources, "-o", program], check=True)
        done = subprocess.run([*runs, program], check=True, capture_output=True, text=True)
        hashes.append(done.stdout.splitlines())
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 3 * (3 + 2 * 3)
    assert len(set(hashes[0])) >= 3 * (3 + 2 * 2)  # both methods may accept as many
