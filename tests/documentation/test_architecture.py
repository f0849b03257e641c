"""The package's layout: no circles, one direction, and no more names than a person can hold."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rdk_cuda"

Graph = dict[str, set[str]]


def modules(package: Path) -> dict[str, Path]:
    """By dotted name; a package is its `__init__`."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports, wherever in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} - {"rdk_cuda"}
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, *([node.module] if node.module else [])])
        base = base if node.level else str(node.module)
        for alias in node.names:
            if alias.name == "_C":  # the extension, which imports nothing
                continue
            full = f"{base}.{alias.name}"
            found.add(full if full in known else base)
    return (found & known.keys()) - {name}


def graph_of(package: Path) -> Graph:
    known = modules(package)
    return {name: imports(name, path, known) for name, path in known.items()}


def by_folder(graph: Graph, package: Path) -> Graph:
    """The same between folders; files of the root, and of recipes, stand for themselves."""
    known = modules(package)
    top = {package.name, f"{package.name}.__main__"}
    roots = package, package / "recipes"

    def folder(name: str) -> str:
        alone = name in top or known[name].parent in roots
        return name if alone else str(known[name].parent)

    folders: Graph = {}
    for name, others in graph.items():
        if name not in top:
            found = folders.setdefault(folder(name), set())
            found |= {folder(other) for other in others if other not in top}
    return {name: others - {name} for name, others in folders.items()}


def assert_without_circles(graph: Graph) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' <- '.join(error.args[1])}")


@pytest.mark.parametrize("folder", ["rdk_cuda", "examples", "profiling", "studies"])
def test_no_modules_import_each_other_in_a_circle(folder: str) -> None:
    assert_without_circles(graph_of(ROOT / folder))


def test_no_folders_import_each_other_in_a_circle() -> None:
    assert_without_circles(by_folder(graph_of(PACKAGE), PACKAGE))


def test_a_circle_would_be_found() -> None:
    graph = graph_of(PACKAGE)
    graph["rdk_cuda.files"].add("rdk_cuda.cli.inspect")
    with pytest.raises(pytest.fail.Exception, match="a circle"):
        assert_without_circles(graph)
    with pytest.raises(pytest.fail.Exception, match="a circle"):
        assert_without_circles(by_folder(graph, PACKAGE))


def test_the_oracle_and_the_package_do_not_know_each_other() -> None:
    for name, others in graph_of(PACKAGE).items():
        inside = name.startswith("rdk_cuda.reference")
        for other in others:
            assert other.startswith("rdk_cuda.reference") == inside, f"{name} imports {other}"


def core_that_imports_labs(graph: Graph) -> list[str]:
    labs = "rdk_cuda.labs"
    return [
        f"{name} imports {other}"
        for name, others in graph.items()
        for other in others
        if f"{other}.".startswith(f"{labs}.") and not f"{name}.".startswith(f"{labs}.")
    ]


def test_the_core_never_imports_labs() -> None:
    graph = graph_of(PACKAGE)
    assert not core_that_imports_labs(graph)
    graph["rdk_cuda.files"].add("rdk_cuda.labs")
    assert core_that_imports_labs(graph) == ["rdk_cuda.files imports rdk_cuda.labs"]


_RUNS = "calibrate", "directories", "distill", "evaluate", "run", "saved"
RUNS = ("cli", *(f"recipes.{name}" for name in _RUNS))
"""What only commands import, and labs."""


def test_recipes_are_imported_one_way() -> None:
    """From commands over runs and stages to what is recorded and read, and none by integrations."""
    below = ("recipes.record", "recipes.shards", "recipes.inputs", "integrations", "decoding")
    middle = ("recipes.stages", "recipes.report", "recipes.choose")
    for name, others in graph_of(PACKAGE).items():
        own = name.removeprefix("rdk_cuda.")
        above = (*RUNS, *middle) if own.startswith(below) else RUNS
        if own.startswith((*below, *middle)):
            back = [each for each in others if each.removeprefix("rdk_cuda.").startswith(above)]
            assert not back, f"{name} imports {back}"
