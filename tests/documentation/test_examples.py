"""Every example runs as written: code blocks of the pages, and doctests of all modules."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import torch

import rdk_cuda

from .markdown import DESIGN, README, python_blocks

# Modules that only the extras bring; an example that needs one is skipped without it.
EXTRAS = {"matplotlib", "rich", "sklearn", "tokenizers", "tqdm", "transformers"}

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(rdk_cuda.__path__, "rdk_cuda.", onerror=lambda _: None)
    if module.name.rpartition(".")[2] not in {"_C", "__main__"}
)


@pytest.mark.parametrize("page", [README, DESIGN], ids=lambda page: page.name)
def test_python_blocks_run_as_written_one_after_the_other(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in ("sklearn", "transformers") if page is README else ():
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    blocks = python_blocks(page)
    assert blocks
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for line, code in blocks:
            # Newlines in front, so that a traceback shows the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
    assert not list(tmp_path.iterdir()), "an example left files behind"


def test_the_custom_decoder_of_the_readme_is_about_fifteen_lines() -> None:
    code = python_blocks(README)[0].code
    body = code.split("def generate")[1].split("\n\n")[0]
    assert body.count("\n") <= 20


@pytest.mark.parametrize("name", ["rdk_cuda", *MODULES])
def test_docstring_examples_of(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"{name} needs {error.name}")
    with torch.random.fork_rng():
        result = doctest.testmod(module)
    assert result.failed == 0


def test_public_functions_have_examples() -> None:
    finder = doctest.DocTestFinder(recurse=False)
    for name in ("draft", "redistribute", "gather_logits", "step_seeds", "build_info"):
        tests = finder.find(getattr(rdk_cuda, name), name)
        assert any(test.examples for test in tests), name
