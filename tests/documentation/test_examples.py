"""Every example runs as written: of the folder examples, the pages, and doctests of all modules."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import rdk_cuda

from .markdown import PAGES, ROOT, Block, python_blocks

# Modules that only the extras bring; an example that needs one is skipped without it.
EXTRAS = {"matplotlib", "rich", "sklearn", "tokenizers", "tqdm", "transformers", "vllm"}

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(rdk_cuda.__path__, "rdk_cuda.", onerror=lambda _: None)
    if module.name.rpartition(".")[2] not in {"_C", "__main__"}
)


# What the blocks of a page need beyond the package.
NEEDS = {"samplers.md": ["transformers"], "tutorial.md": ["sklearn", "transformers"]}
NEEDS["calls.md"] = ["transformers"]
NEEDS["calibration.md"] = NEEDS["tutorial.md"]
WITH_CODE = [page for page in PAGES if python_blocks(page)]


def run(page: Path, blocks: list[Block], namespace: dict[str, object]) -> None:
    """In order, from one state of torch's random numbers, and on one thread: models are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for line, code in blocks:
                # Newlines in front, so that a traceback shows the line of the page.
                exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_python_blocks_run_as_written_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in NEEDS.get(page.name, []):
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    blocks = python_blocks(page)
    run(page, blocks, namespace)
    assert not list(tmp_path.iterdir()), "an example left files behind"


def imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"{name} needs {error.name}")


@pytest.mark.parametrize("name", ["rdk_cuda", *MODULES])
def test_docstring_examples_of(name: str) -> None:
    module = imported(name)
    with torch.random.fork_rng():
        result = doctest.testmod(module)
    assert result.failed == 0


@pytest.mark.parametrize("name", ["rdk_cuda", *MODULES])
def test_a_module_has_all_that_it_offers(name: str) -> None:
    module = imported(name)
    loads_when_asked = hasattr(module, "__getattr__")
    assert loads_when_asked or set(getattr(module, "__all__", ())) <= vars(module).keys()


SLOW = {name: pytest.mark.ci for name in ("other_tokenizer", "proposers", "refined_blocks")}
SLOW["parallel_targets"] = pytest.mark.night  # of labs
EXAMPLES = [
    pytest.param(path.stem, marks=SLOW.get(path.stem, ()))
    for path in sorted((ROOT / "examples").glob("[!_]*.py"))
]


def run_example(name: str, folder: Path) -> list[str]:
    """The lines that it prints; it checks itself, and its status says how that went."""
    path = ROOT / "examples" / f"{name}.py"
    result = subprocess.run(
        [sys.executable, str(path)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_finds_its_output_right(name: str, tmp_path: Path) -> None:
    if name in ("other_tokenizer", "proposers", "refined_blocks"):
        pytest.importorskip("transformers")
    greedy = r"the greedy text of \d+ tokens is the target's own"
    assert re.fullmatch(greedy, run_example(name, tmp_path)[-1])
    assert not list(tmp_path.iterdir())
