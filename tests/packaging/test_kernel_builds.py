"""Kernels are compiled once, whoever asks, and none without what ptxas said of it."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import build_kernels

from .distributions import ROOT, run

# Says which file it compiles, waits, and writes the file that is asked for.
NVCC = """#!/bin/sh
for argument; do last=$argument; done
echo "$last" >> {folder}/compiled
echo "ptxas info    : Compiling entry function 'step_keys_kernel' for 'sm_90'"
sleep 0.2
: > "$last"
"""
ASKS = """
import sys, pathlib, build_kernels
cubins = build_kernels.compile_cubins(pathlib.Path(sys.argv[1]), ["90"])
assert all(map(build_kernels.reports, cubins.values()))
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with an nvcc that notes what it compiles."""
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC.format(folder=tmp_path))
    nvcc.chmod(0o755)
    return f"{nvcc.parent}{os.pathsep}{os.environ['PATH']}"


def test_two_processes_at_once_compile_each_kernel_once(tmp_path: Path, path: str) -> None:
    asked = ["-c", ASKS, str(tmp_path / "kernels")]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: run(asked, ROOT, PATH=path, MAX_JOBS="4"), range(2)))
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    compiled = (tmp_path / "compiled").read_text().splitlines()
    assert len(compiled) == len(set(compiled)) == len(build_kernels.sources())


def test_a_kernel_whose_log_was_cut_off_is_compiled_again(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path)
    cubins = build_kernels.compile_cubins(tmp_path / "kernels", ["90"])
    cut_off = cubins["verify", "90"]
    Path(f"{cut_off}.log").write_text("")
    (tmp_path / "compiled").unlink()
    build_kernels.compile_cubins(tmp_path / "kernels", ["90"])
    assert (tmp_path / "compiled").read_text().split() == [str(cut_off)]
    assert build_kernels.reports(cut_off)
