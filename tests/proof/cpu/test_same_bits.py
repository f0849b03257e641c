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

from tests.tolerances import assert_same_bits

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


Results = dict[int, dict[str, tuple[Tensor, ...]]]


@pytest.fixture(scope="module")
def results(
    arithmetics: list[Arithmetic], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Results]:
    """By instruction set and number of threads, what `workload.py` computed with them."""
    folder = tmp_path_factory.mktemp("results")
    found = {}
    for name in (arithmetic.name for arithmetic in arithmetics):
        process = python(["-m", "tests.proof.cpu.workload", str(folder / name)], name)
        assert process.returncode == 0, process.stderr
        saved = torch.load(folder / name, weights_only=True)
        assert saved["capability"] == name
        found[name] = saved["results"]
    return found


def test_instruction_sets_threads_and_where_rows_lie_change_no_bit(
    results: dict[str, Results],
) -> None:
    expected = results["default"][1]
    for capability, by_threads in results.items():
        assert set(by_threads) == set(THREADS)
        for threads, found in by_threads.items():
            for name, tensors in found.items():
                same_as = name.replace("not aligned", "16 bits")
                assert_same_bits(tensors, expected[same_as], f"{name}, {capability}, {threads}")
    assert sum("not aligned" in name for name in expected) >= 2


def test_these_are_results_that_could_differ(results: dict[str, Results]) -> None:
    """The control: not constants; drafts accepted and rejected, and direct passes that find one."""
    found = results["default"][1]
    _, stats = found["few rows of draft"]
    assert stats.isfinite().any()
    assert stats[:, 1].unique().numel() > 1
    (probs,) = found["redistribute"]
    assert probs[0].unique().numel() > 1000
    accepted = found["verify"][1]
    assert 0 < int((accepted > 0).sum()) < accepted.numel()
    for name in ("direct pass of few rows", "direct pass of few rows, by block"):
        tokens, accepted, _ = found[name]
        assert (tokens[:, 0] >= 0).all()
        assert not accepted.any()


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
