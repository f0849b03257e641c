"""`make night`: everything that takes longer than `.ci/run` may, one line a part with its time.

    python -m tests.night [--again] [PART ...]

A part that passed on this commit is not run again unless it is named or `--again` is given, so
an interrupted night goes on where it was; a folder of tests that takes long is a part of its own.
Each part's output is in build/night/PART.log. tests/night.json, which is committed, has the last
result of each part, with the commit that it is of.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "night"
RESULT = Path(__file__).with_suffix(".json")
PYTHON = sys.executable
PYTEST = [PYTHON, "-m", "pytest", "-n", "auto", "--dist", "loadgroup", "--no-loadscope-reorder"]

FUZZ = [PYTHON, "-m", "tests.proof.fuzz"]

THOROUGH = {"RDK_ARCHS": "80 86 89 90a 100 120"}  # the kernels of every architecture
SLOW_TESTS = {  # folders, with the marks of what runs: that of ci compiles one architecture
    "proof/packaging": "night or ci",
    "proof/emulated": "night",
    "operators": "night",
    "decoding": "night",
    "labs": "night",
}
PARTS: dict[str, list[str]] = {
    **{
        folder.removeprefix("proof/"): [*PYTEST, "-m", marks, f"tests/{folder}"]
        for folder, marks in SLOW_TESTS.items()
    },
    "other-tests": [
        *PYTEST,
        *("-m", "night"),
        *(f"--ignore=tests/{folder}" for folder in SLOW_TESTS),
    ],
    "fuzz": [*FUZZ, "--seed", "1", "--count", "50000"],
    "fuzz-kernels": [*FUZZ, "--implementation", "cuda", "--count", "500"],
    "mutants": [PYTHON, "-m", "tests.proof.mutation", "--all"],
    "soak": [PYTHON, "-m", "tests.proof.soak", "--tokens", "1e8"],
    "versions": [PYTHON, "-m", "tests.versions"],
    "wheels": ["make", "wheels"],
    "demo": ["make", "demo"],
    "demo-gemma": ["make", "demo-gemma"],
    "vllm": ["make", "test-vllm", "VLLM_TESTS=night"],
    "sglang": ["make", "test-sglang"],
}
VERSIONS = ("torch", "transformers", "numpy")


def main(arguments: list[str] | None = None) -> int:
    """Run what has not passed on this commit; 1 if anything fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.night")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--again", action="store_true", help="also what has passed on this commit")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part is named {sorted(unknown)}; there are {', '.join(PARTS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    results, now = last(), commit()
    done = [] if options.again else [part for part in results if passed(results[part], now)]
    named = options.parts or [part for part in PARTS if part not in done]
    for part in named:
        print(f"{part:<12} ...", end="\r", flush=True)
        results[part] = run(part)
        print(
            f"{part:<12} {results[part]['result']:<8} {results[part]['seconds']:6.0f} s", flush=True
        )
        write(results)
    return int(any(results[part]["result"] != "passed" for part in named))


def run(part: str) -> dict[str, object]:
    """One part's result, with its output in a log."""
    start = time.monotonic()
    with (LOGS / f"{part}.log").open("wb") as log:
        code = subprocess.run(
            PARTS[part], cwd=ROOT, env=os.environ | THOROUGH, stdout=log, stderr=log
        ).returncode
    return {
        "result": "passed" if code == 0 else f"exit {code}",
        "seconds": round(time.monotonic() - start),
        "commit": commit(),
    }


def commit() -> str:
    """Of the work tree, with a plus where it has changes."""
    others = ["--", ".", f":!{RESULT.relative_to(ROOT)}"]
    return git("rev-parse", "HEAD")[:12] + ("+" if git("status", "--porcelain", *others) else "")


def git(*arguments: str) -> str:
    """What git says."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def last() -> dict[str, dict[str, object]]:
    """The last result of each part."""
    if not RESULT.exists():
        return {}
    parts = json.loads(RESULT.read_text(encoding="utf-8"))["parts"]
    return {part: parts[part] for part in PARTS if part in parts}


def passed(result: dict[str, object], now: str) -> bool:
    """Whether a part need not be run again."""
    return (result["result"], result["commit"]) == ("passed", now)


def write(results: dict[str, dict[str, object]]) -> None:
    """So that an interrupted night keeps what it has."""
    versions = {name: importlib.metadata.version(name) for name in VERSIONS}
    content = {"python": platform.python_version(), **versions, "parts": results}
    text = json.dumps(content, indent=1) + "\n"
    unfinished = RESULT.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(RESULT)


if __name__ == "__main__":
    sys.exit(main())
