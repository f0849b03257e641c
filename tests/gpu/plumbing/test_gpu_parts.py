"""What the commands on a GPU run there, within which time, and what they look at first."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from profiling.bench.measure import PEERS
from profiling.peers.installed import known_peers
from profiling.peers.samplers import OURS as OUR_SAMPLER
from tests.gpu import machine as machines
from tests.gpu.__main__ import (
    CHECK,
    MEASURE,
    SANITIZE,
    NoGpuError,
    arguments,
    look,
    main,
)
from tests.gpu.machine import ROOT, digest_of_sources
from tests.gpu.measurements import (
    COMPILED,
    PLAIN,
    PLAIN_SAMPLERS,
    SLOW_SAMPLERS,
    measurements,
    missing,
)
from tests.gpu.parts import (
    CUPY,
    OWN_PARTS,
    TOGETHER,
    TOOLS,
    parts,
    sanitizers,
)
from tests.gpu.sanitize import command as sanitizer_command

from .test_gpu_check import MACHINE

SOMEWHERE = ROOT / "build" / "somewhere"
EVERY = {"": CHECK, "--measure": MEASURE, "--sanitize": SANITIZE}


@pytest.mark.parametrize("option", EVERY)
def test_the_limits_of_one_command_are_at_most_540_s_together(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is slow when it starts, a first `import torch` or compilation, has two minutes."""
    command = EVERY[option]
    given = command.make_parts(MACHINE, SOMEWHERE)
    assert main([*option.split(), "--list"]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows[1:]] == [part.name for part in given]
    limits = (re.search(r" (\d+)(?:  \S.*)?$", row) for row in rows)  # then the reason to skip
    alone = [part.limit for part in given if part.by_name]
    total = sum(int(limit[1]) for limit in limits if limit) - sum(alone)
    assert last == f"together at most {total} s"
    assert total <= TOGETHER == 540
    assert all(command.look_limit + limit <= TOGETHER for limit in alone)
    assert command is SANITIZE or command.look_limit == 120
    assert command is not CHECK or (given[-1].name, given[-1].limit) == ("compile", 120)


def test_sanitizers_are_a_command_of_their_own_and_watch_our_kernels_alone() -> None:
    assert [part.name for part in sanitizers(MACHINE, SOMEWHERE)] == list(TOOLS)
    assert not {part.name for part in parts(MACHINE, SOMEWHERE)} & set(TOOLS)
    for tool in TOOLS:
        assert "--kernel-name=kernel_substring=_ZN3rdk" in sanitizer_command(tool, "sanitizer")
    for source in (ROOT / "csrc" / "cuda").glob("*.cu"):
        before, found, _ = source.read_text().partition("\n__global__")
        assert found, source
        assert "\nnamespace rdk {\n" in before, source


def test_what_takes_minutes_is_measured_when_it_is_asked_for() -> None:
    every = measurements(MACHINE, SOMEWHERE)
    assert {part.name for part in every if part.by_name} == {"growth", "compiled", "slow-peers"}
    for part in every:
        for words in part.commands if not part.by_name else ():
            assert not {"--growth", "growth", *COMPILED, *SLOW_SAMPLERS} & set(words)
            assert "--peers" in words or not {"profiling.bench", "profiling.peers"} & set(words)
    assert {*PLAIN, *COMPILED} == set(PEERS)
    commands = [words for part in every for words in part.commands if "--output" in words]
    files = [words[words.index("--output") + 1] for words in commands]
    assert len(set(files)) == len(files)  # none overwrites another's
    assert {*PLAIN_SAMPLERS, *SLOW_SAMPLERS} == set(known_peers()) - {OUR_SAMPLER}


def modules(paths: Sequence[str]) -> set[str]:
    """Relative to the repository, of files and folders."""
    found = (path for given in paths for path in [ROOT / given, *(ROOT / given).glob("test_*.py")])
    return {str(path.relative_to(ROOT)) for path in found if path.suffix == ".py"}


def test_every_test_for_a_gpu_belongs_to_one_part() -> None:
    """Those of tests/gpu, and those that run on every device."""
    fixture = re.compile(r'usefixtures\("(device|cpu_or_cuda)"\)|params=CPU_OR_CUDA')
    everywhere = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    needed = {str(p.relative_to(ROOT)) for p in everywhere if fixture.search(p.read_text())}
    needed |= modules(["tests/gpu"])
    own = {path for _, _, paths in OWN_PARTS.values() for path in paths.split()}
    (tests,) = [part for part in parts(MACHINE, SOMEWHERE) if part.name == "tests"]
    arguments = tests.commands[0]
    ignored = {a.removeprefix("--ignore=") for a in arguments if a.startswith("--ignore=")}
    assert ignored == own <= needed
    assert needed <= own | modules([a for a in arguments if a.startswith("tests/")])


def test_every_file_that_a_part_runs_is_there() -> None:
    for every in EVERY.values():
        for part in every.make_parts(MACHINE, SOMEWHERE):
            for command in part.commands:
                for argument in command:
                    if argument.endswith((".py", ".sh")):
                        assert (ROOT / argument.removeprefix("--ignore=")).exists(), argument
                if "-m" in command and command[2].startswith(("tests.", "profiling.")):
                    module = ROOT / command[2].replace(".", "/")
                    assert module.with_suffix(".py").exists() or (module / "__main__.py").exists()


def test_what_is_not_installed_is_skipped_by_name_and_the_rest_still_runs() -> None:
    assert missing("json", "no_such_module", "nor_this") == "no_such_module, nor_this not installed"
    assert missing("json") == ""
    bare = parts(MACHINE | {"xdist": False}, SOMEWHERE)
    assert [part.name for part in bare if part.skipped] == [CUPY]
    assert not [part for part in bare for command in part.commands if "-n" in command]
    assert not [part for part in parts(MACHINE | {"cupy": True}, SOMEWHERE) if part.skipped]
    assert not any(part.skipped for part in sanitizers(MACHINE, SOMEWHERE))
    without = sanitizers(MACHINE | {"compute_sanitizer": None}, SOMEWHERE)
    assert all(part.skipped for part in without)


@pytest.mark.parametrize(("capability", "arch"), [("8.0", "80"), ("9.0", "90a"), ("12.0", "120")])
def test_the_kernels_are_built_for_the_gpu_that_is_there(
    capability: str, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = MACHINE | {"capability": capability}
    monkeypatch.delenv("RDK_ARCHS", raising=False)
    assert parts(machine, SOMEWHERE)[0].environment["RDK_ARCHS"] == arch
    monkeypatch.setenv("RDK_ARCHS", "86")
    assert parts(machine, SOMEWHERE)[0].environment["RDK_ARCHS"] == "86"


def test_what_is_here_is_looked_at_by_short_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is an error in words; the toolkit goes by its release, and sources by a digest."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoGpuError, match="torch"):
        look(arguments(["--output", str(tmp_path / "output")]))
    assert machines.output("no-such-command-anywhere") is None
    assert machines.output(sys.executable, "-c", "exit(1)") is None
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'nvcc: a compiler'\necho 'tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert machines.facts()["nvcc"] == "13.0"
    before = digest_of_sources(tmp_path, ["nvcc"])
    assert before == digest_of_sources(tmp_path, ["nvcc"])
    nvcc.write_text("another")
    assert before != digest_of_sources(tmp_path, ["nvcc"])


def test_a_dry_run_starts_nothing_that_needs_a_gpu_and_leaves_what_is_built() -> None:
    machine = MACHINE | {"dry_run": True, "compute_sanitizer": None}
    for command in EVERY.values():
        for part in command.make_parts(machine, SOMEWHERE):
            if part.skipped:
                continue
            assert part.environment.get("RDK_GPU_TESTS_ON", "cpu") == "cpu"
            assert part.environment.get("RDK_CUDA", "off") == "off"
            for words in part.commands:
                assert not {"cuda", "--inplace", "tests.gpu.built"} & set(words)
