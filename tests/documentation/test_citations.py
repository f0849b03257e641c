"""What comments, docstrings and pages refer to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rdk_cuda._ops.contract import OPERATORS

from .markdown import DESIGN, LABS, PAGES, README, ROOT, citations, headings, links, prose, resolves

SOURCES = sorted(
    path
    for folder in ("csrc", "examples", "profiling", "rdk_cuda", "studies", "tests")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".pyi", ".h", ".cpp", ".cu", ".cuh"}
    and path.parent != Path(__file__).parent
)


def test_every_citation_of_design_resolves_to_a_heading() -> None:
    page = headings(DESIGN)
    dangling = [
        f"{path.relative_to(ROOT)}: {citation}"
        for path in SOURCES
        for citation in citations(path.read_text(encoding="utf-8"))
        if not resolves(citation, page)
    ]
    assert not dangling, "\n".join(dangling)


@pytest.mark.parametrize(
    "comment",
    [
        '// as it must be (docs/design.md, "No such heading").',
        "# see DESIGN\n# section 9",
        '"""DESIGN section 5, "Virtual tokens"."""',  # it is in section 2
        "as sections 2 and 11 of docs/design.md say",
    ],
)
def test_a_dangling_citation_is_noticed(comment: str) -> None:
    page = headings(DESIGN)
    assert not all(resolves(citation, page) for citation in citations(comment))


@pytest.mark.parametrize(
    "page", [*PAGES, *LABS], ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {link}"
        assert target.is_relative_to(ROOT), f"{page.name} links to {link}"
        if anchor:
            assert anchor in {heading.anchor for heading in headings(target)}, link


def test_the_readme_leads_to_every_page() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert set(PAGES) - {README} <= linked


def test_samplers_lead_to_every_page_of_labs() -> None:
    page = ROOT / "docs" / "samplers.md"
    linked = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
    assert set(LABS) <= linked
    folders = {path.parent for path in (ROOT / "rdk_cuda" / "labs").glob("*/__init__.py")}
    assert {page.parent for page in LABS} == folders


def missing_files(text: str) -> list[str]:
    """Files of the repository that a page names and that are not there, NAME any operator.

    A gradient is tested with the operator whose it is, and what works on the rows of a step has the
    files of the operator whose name it begins with.
    """
    named = re.findall(r"`((?:\.ci|csrc|docs|examples|profiling|rdk_cuda|tests)/[\w./-]+)`", text)
    own = [operator for operator in OPERATORS if not operator.endswith("_step")]
    tested = [operator for operator in own if not operator.endswith("_backward")]
    files = {
        name.replace("NAME", operator)
        for name in named
        for operator in (tested if name.startswith("tests/") else own)
    }
    return sorted(file for file in files if not (ROOT / file).exists())


@pytest.mark.parametrize(
    "page", [*PAGES, *LABS], ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert not missing_files(prose(page))


def test_a_file_that_is_not_there_is_noticed() -> None:
    assert not missing_files("`csrc/cpu/NAME.cpp` and `csrc/ops`")
    assert missing_files("`tests/nowhere`") == ["tests/nowhere"]
    assert "csrc/verify.cpp" in missing_files("`csrc/NAME.cpp`")


def test_the_layout_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    layout = page.split("## Layout")[1].split("\n\n")[1]
    named, folder = [], ""
    for indent, name in re.findall(r"^( {4}| {6})(\S+)", layout, re.MULTILINE):
        folder = name if len(indent) == 4 else folder
        named.append(name if len(indent) == 4 else folder + name)
    assert "csrc/operators.def" in named
    assert not [name for name in named if not (ROOT / name).exists()]
