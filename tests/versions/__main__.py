"""Run the Hugging Face tests with other releases of Transformers and torch than the installed ones.

python -m tests.versions                        # oldest and newest of both: four combinations
python -m tests.versions --transformers newest --torch installed
python -m tests.versions --newest-if-new        # does nothing where constraints.txt has the newest

The oldest is the one that pyproject.toml names, the newest what the index has, upper bound or not.
Each combination has an environment under build/versions, which is kept. It sees the packages of the
one that runs this command, and the operators as they are built in place: they fit every torch.
TORCH_INDEX is the index that torch comes from, as for `make`.

A line for each combination says what was tested, or that the index did not have it. The exit status
is 1 unless all tests passed with all of them; with --newest-if-new it is always 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path

from tests.constraints import ALL, pinned

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "versions"
TESTS = (
    "tests/decoding/test_huggingface.py",
    "tests/evaluation/test_speed.py",
    "tests/integrations/eagle3",
    *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("tests/integrations/test_gen*.py")),
    "tests/integrations/test_recurrent_models.py",
    "tests/integrations/test_saved_drafter.py",
)


class NotTestedError(Exception):
    """Why there is no result."""


def oldest(package: str) -> str:
    """The lower bound in pyproject.toml."""
    found = re.search(rf'"{package}>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert found is not None, f"pyproject.toml has no lower bound of {package}"
    return found[1]


def constrained(package: str) -> str:
    """The release in constraints.txt for this Python, or the installed one if that has none."""
    pins = pinned(ALL, f"{sys.version_info[0]}.{sys.version_info[1]}")
    return str(pins[package]) if package in pins else version(package)


def release(package: str, which: str) -> str:
    """A release by its number, for "oldest" and "newest" as the index has them."""
    if which == "installed":
        return version(package)
    wanted = {"oldest": f"{package}=={oldest(package)}", "newest": package}
    options = ["--dry-run", "--ignore-installed", "--no-deps", "--report", "-"]
    found = pip(sys.executable, package, *options, wanted.get(which, f"{package}=={which}"))
    return str(json.loads(found)["install"][0]["metadata"]["version"])


def pip(python: str | Path, package: str, *arguments: str) -> str:
    """What `pip install` prints."""
    index = os.environ.get("TORCH_INDEX") if package == "torch" else None
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet"]
        + (["--index-url", index] if index else [])
        + list(arguments),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = errors[-1] if errors else f"ended with {done.returncode}: {done.stderr[-200:]}"
        raise NotTestedError(f"pip install {arguments[-1]}: {reason}")
    return done.stdout


def environment(transformers: str, torch: str) -> Path:
    """The Python of an environment with these, which is made where there is none."""
    folder = BUILD / f"transformers-{transformers}-torch-{torch}"
    python = folder / "bin" / "python"
    if installed(python) != [transformers, torch]:
        create(folder)
        for package, wanted in (("torch", torch), ("transformers", transformers)):
            if wanted != version(package):
                pip(python, package, f"{package}=={wanted}")
        if (found := installed(python)) != [transformers, torch]:
            raise NotTestedError(f"{folder} has {' and '.join(found)}")
    return python


def create(folder: Path) -> Path:
    """The Python of an environment that sees the packages of the running one."""
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    running = [path for path in sys.path if path.endswith("-packages")]
    (packages / "running.pth").write_text("\n".join(running) + "\n")
    return folder / "bin" / "python"


def installed(python: Path) -> list[str]:
    """The releases of Transformers and torch that a Python imports; none without such a Python."""
    code = "from importlib.metadata import version as v; print(v('transformers'), v('torch'))"
    if not python.exists():
        return []
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return done.stdout.split()


def run(transformers: str, torch: str) -> tuple[bool, str]:
    """Whether all tests pass, and a line that says so."""
    name = f"Transformers {transformers}, torch {torch}"
    try:
        transformers, torch = release("transformers", transformers), release("torch", torch)
        name = f"Transformers {transformers}, torch {torch}"
        python = environment(transformers, torch)
    except NotTestedError as error:
        return False, f"{name}: NOT TESTED: {error}"
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "auto", *TESTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines() or ["nothing was printed"]
    if done.returncode == 0:
        return True, f"{name}: {lines[-1]}"
    log = BUILD / f"transformers-{transformers}-torch-{torch}.log"
    log.write_text(done.stdout + done.stderr)
    return False, f"{name}: FAILED: {lines[-1]}; status {done.returncode}; {log}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    releases = '"oldest", "newest", "installed" or a number; may be repeated'
    for package in ("transformers", "torch"):
        parser.add_argument(f"--{package}", action="append", help=releases)
    parser.add_argument("--newest-if-new", action="store_true")
    given = parser.parse_args(arguments)
    if given.newest_if_new:
        try:
            newest = release("transformers", "newest")
        except NotTestedError as error:
            print(f"Transformers newest: NOT TESTED: {error}")
            return 0
        if newest == constrained("transformers"):
            print(f"Transformers {newest}: is the newest, and what the tests run with")
        else:
            print(run(newest, "installed")[1])
        return 0
    both = ["oldest", "newest"]
    passed = True
    for transformers, torch in product(given.transformers or both, given.torch or both):
        right, line = run(transformers, torch)
        print(line, flush=True)
        passed &= right
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
