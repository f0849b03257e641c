"""The pages say what the package is: schemas, arguments, commands, numbers."""

from __future__ import annotations

import re

import pytest
import torch

import rdk_cuda
from rdk_cuda._ops.contract import OPERATORS

from . import shapes
from .markdown import DESIGN, README, ROOT


def schema(name: str) -> str:
    return str(getattr(torch.ops.rdk, name).default._schema)


def groups() -> dict[str, list[str]]:
    """The arguments that the schemas of docs/design.md name together."""
    text = DESIGN.read_text(encoding="utf-8")
    found = re.findall(r"^    (\w+) += \((.+)\)$", text, re.MULTILINE)
    return {name: names.split(", ") for name, names in found}


def written_out(group: str, names: list[str]) -> str:
    if group in ("dynamic", "limits"):
        return ", ".join(f"{name}?=None" for name in names)
    return ", ".join(name + "?" * (name == "bias") for name in names)


def typed(arguments: str) -> str:
    """With the type Tensor where the page leaves it out."""
    return re.sub(
        r"(^|, )(\w+)(\??)(?=[,=]|$)",
        lambda found: f"{found[1]}Tensor{found[3]} {found[2]}",
        arguments,
    )


def printed_schemas() -> dict[str, str]:
    """The indented schemas of docs/design.md, section 4, each on one line and written out."""
    section = DESIGN.read_text(encoding="utf-8").split("### Schemas")[1].split("###")[0]
    indented = "\n".join(line for line in section.split("\n") if line.startswith("    "))
    for group, names in groups().items():
        indented = re.sub(rf"\*{group}\b", written_out(group, names), indented)
    schemas = {}
    for text in re.findall(r"rdk::\w+\(.*?(?=rdk::|\Z)", indented, re.DOTALL):
        head, _, results = " ".join(text.split()).partition(" -> ")
        name, _, arguments = head.removesuffix(")").partition("(")
        several = results.startswith("(")
        results = typed(results.strip("()"))
        results = f"({results})" if several else results
        schemas[name.removeprefix("rdk::")] = f"{name}({typed(arguments)}) -> {results}"
    return schemas


def test_design_prints_the_schema_of_every_operator() -> None:
    registered = {
        name.removeprefix("rdk::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("rdk::")
    }
    assert registered == set(OPERATORS) == set(printed_schemas())


@pytest.mark.parametrize("name", OPERATORS)
def test_printed_schema_is_the_registered_one(name: str) -> None:
    assert printed_schemas()[name] == schema(name)


def test_the_contract_has_the_arguments_and_results_of_every_schema() -> None:
    for name, described in OPERATORS.items():
        operator = getattr(torch.ops.rdk, name).default._schema
        assert [argument.name for argument in operator.arguments] == list(described.arguments)
        assert [result.name for result in operator.returns] == list(described.results)


def test_design_explains_every_argument_and_result_with_the_shape_of_the_contract() -> None:
    page = DESIGN.read_text(encoding="utf-8")
    expected, explained, returned = shapes.filled(page)
    assert page == expected, "python -m tests.documentation.shapes"
    for name, described in OPERATORS.items():
        assert {each for operator, each in explained if operator == name} == {*described.arguments}
        assert {each for operator, each in returned if operator == name} == {*described.results}


def test_an_affinity_hands_its_tensors_out_in_the_order_that_design_says() -> None:
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary([1, -1], target_size=3))
    for name in ("by_target", "by_draft"):
        for tensor, attribute in zip(getattr(affinity, name), groups()[name], strict=True):
            assert tensor is getattr(affinity, attribute)


def test_the_two_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", makefile, re.MULTILINE)
    readme = README.read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert target in targets
        assert re.search(rf"^make {target}\b", readme, re.MULTILINE)
    commands = (ROOT / ".ci" / "run").read_text(encoding="utf-8").split("\n")
    assert "make test" in commands


def test_the_pages_name_what_is_supported_as_the_metadata_do() -> None:
    metadata = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    (python,) = re.findall(r'^requires-python = ">=([\d.]+)"', metadata, re.MULTILINE)
    (torch_version,) = re.findall(r'^dependencies = \["torch>=([\d.]+)"', metadata, re.MULTILINE)
    assert f"Linux, Python {python}+, torch {torch_version}+" in readme
    assert rdk_cuda.build_info()["torch_target"] == torch_version
    ((oldest, above),) = re.findall(r'"transformers>=(5\.\d+),<5\.(\d+)"', metadata)
    install = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert f"Transformers ({oldest} to 5.{int(above) - 1})" in install


def test_the_readme_fits_a_hundred_and_fifty_lines() -> None:
    assert README.read_text(encoding="utf-8").count("\n") <= 150


def test_the_version_is_the_same_everywhere() -> None:
    version = rdk_cuda.__version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)[1] == version  # type: ignore[index]
    assert f"Version {version}" in README.read_text(encoding="utf-8")


def test_an_affinity_takes_the_memory_that_the_page_of_samplers_says() -> None:
    draft_size, target_size, rank = 70, 90, 2
    affinity = rdk_cuda.Affinity.from_rows(
        torch.eye(draft_size, target_size),
        spread=torch.ones(draft_size, rank),
        prior=torch.ones(rank, target_size),
    )
    tensors = {id(t): t for t in (*affinity.by_target, *affinity.by_draft)}.values()
    taken = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    said = 20 * affinity.nnz + 12 * rank * (draft_size + target_size)
    said += 12 * draft_size + 4 * target_size
    ends = 2 * 4  # the last entry of each of the two tensors of offsets
    assert taken == said + ends
