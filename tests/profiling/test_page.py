"""The page is whole by itself, and every figure in it leads to its row."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from profiling import page
from profiling.evidence import Evidence, read_json
from profiling.markup import Html, element, escaped, table

from .bench_rows import made_row, write_rows

pytest.importorskip("matplotlib")

RESULTS = page.RESULTS
HOSTILE = '<script>alert("&")</script>'
VOID = {"meta"}


class Reader(HTMLParser):
    """Elements with their attributes, and whether all of them are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def attributes(self, name: str) -> list[str]:
        return [each[name] or "" for _, each in self.elements if name in each]


def written(results: Path, output: Path) -> str:
    assert page.main(["--results", str(results), "--output", str(output)]) == 0
    return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page") / "folder" / "report.html"


@pytest.fixture(scope="module")
def text(output: Path) -> str:
    """Of the committed results."""
    output.parent.mkdir()
    return written(RESULTS, output)


@pytest.fixture(scope="module")
def reader(text: str) -> Reader:
    return Reader(text)


def section(text: str, name: str) -> str:
    found = re.search(rf'<section id="{name}">.*?(?=<section id=|</main>)', text, re.DOTALL)
    assert found is not None
    return found[0]


def words(markup: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", markup))


def test_it_needs_nothing_but_itself(text: str, reader: Reader) -> None:
    tags = {tag for tag, _ in reader.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "video", "base"}
    assert reader.attributes("src") == []
    assert not any(name.startswith("on") for _, each in reader.elements for name in each)
    for address in reader.attributes("href") + reader.attributes("xlink:href"):
        assert address.startswith("#") or "//" not in address
    assert "@import" not in text
    assert "@font-face" not in text
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))


def test_both_colour_schemes_are_provided_for(text: str) -> None:
    assert "@media (prefers-color-scheme: dark)" in text
    assert "color-scheme: light dark" in text
    for shade in ("paper", "ink", "line", "faint"):
        assert text.count(f"--{shade}: #") == 2
    assert "#000000" not in text[text.index("</style>") :]


def test_every_link_leads_somewhere(output: Path, reader: Reader) -> None:
    ids = reader.attributes("id")
    assert len(ids) == len(set(ids))
    for address in reader.attributes("href"):
        if address.startswith("#"):
            assert address[1:] in ids
        else:
            assert (output.parent / unquote(address)).is_file()


def test_a_figure_leads_to_its_row_with_commit_device_and_command(text: str) -> None:
    row = read_json(RESULTS / "bench-cpu" / "targets.json")["rows"][10]
    figure = f"{row['median_us']:,.0f}"
    cited = re.search(rf'href="#([^"]*)" class="figure">{figure}<', section(text, "operators"))
    assert cited is not None
    appendix = section(text, "rows")
    at = appendix.index(f'id="{cited[1]}"')
    entry = words(appendix[at : appendix.index("</li>", at)])
    assert "rows[10] " in entry
    assert f"median_us {row['median_us']:.6g} " in entry
    origin = words(appendix[appendix.rindex('class="origin"', 0, at) : at])
    for fact in (row["commit"][:12], row["device_name"], row["command"], row["run"]):
        assert fact in origin


def test_figures_that_are_cited_are_those_of_the_rows(text: str) -> None:
    """Of acceptance: every cell begins with what its row holds."""
    methods = read_json(RESULTS / "acceptance" / "methods.json")["rows"]
    cells = re.findall(
        r'href="#row-\S*methods-json-rows-(\d+)" class="figure">([\d.]+)<small>',
        section(text, "acceptance"),
    )
    assert len(cells) > 90
    for number, shown in cells:
        assert shown == f"{methods[int(number)]['acceptance']:.3f}"


def test_what_has_no_results_is_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    text = written(tmp_path / "empty", tmp_path / "report.html")
    for name, command in (
        ("acceptance", "python -m profiling.acceptance"),
        ("operators", "python profiling/bench.py"),
        ("roofline", "python profiling/bench.py"),
        ("scaling", "python profiling/bench.py"),
        ("demo", "make demo"),
        ("soak", "python -m tests.soak"),
        ("fuzz", "python -m tests.fuzz"),
        ("calibration", "python -m profiling.calibration_scale"),
    ):
        assert "No results yet" in section(text, name)
        assert command in section(text, name)


def test_gpu_results_appear_when_there_are_some(text: str, tmp_path: Path) -> None:
    no_gpu = "No GPU results yet: nothing on this page was measured on a GPU."
    assert no_gpu in text
    results = tmp_path / "results"
    results.mkdir()
    gpu = {"device": "cuda", "device_name": "a GPU", "cuda": "13.0", "driver": "580.1"}
    write_rows(results / "gpu.json", [made_row(), made_row(**gpu, median_us=7.25)])
    text = written(results, tmp_path / "report.html")
    assert no_gpu not in text
    assert "<caption>a GPU</caption>" in section(text, "operators")
    assert ">7.25<" in section(text, "operators")
    assert "cuda 13.0 · driver 580.1" in words(section(text, "rows"))


def test_files_of_other_kinds_are_shown_as_they_are(tmp_path: Path) -> None:
    results = tmp_path / "results" / "compare"
    results.mkdir(parents=True)
    rows = [{"peer": f"peer {number}", "median_us": number + 0.5} for number in range(70)]
    about = {"command": "python -m profiling.compare", "commit": "f" * 40, "device_name": "a GPU"}
    (results / "gpu.json").write_text(json.dumps({**about, "rows": rows}))
    text = written(tmp_path / "results", tmp_path / "report.html")
    assert "compare/gpu.json; 10 more rows in the file" in text
    assert ">41.5</a>" in section(text, "others")
    assert "python -m profiling.compare" in section(text, "rows")


def test_what_files_say_is_text_and_never_markup(tmp_path: Path) -> None:
    results = tmp_path / "results"
    for folder in ("bench", "compare", "soak"):
        (results / folder).mkdir(parents=True)
    row = made_row(f"draft {HOSTILE}", device_name=HOSTILE, command=HOSTILE, commit=HOSTILE)
    write_rows(results / "bench" / "rows.json", [row])
    (results / "compare" / "a&b <i>.json").write_text(
        json.dumps({"rows": [{HOSTILE: HOSTILE, "x": 1}]})
    )
    text = written(results, tmp_path / "report.html")
    Reader(text)
    assert "<script" not in text
    assert "<i>" not in text
    assert text.count("&lt;script&gt;alert(&quot;&amp;&quot;)") > 5


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, output = tmp_path / "results", tmp_path / "report.html"
    for name, content, message in (
        ("soak/cpu.json", "mine", "is no result file"),
        ("soak/cpu.json", '{"seed": 1}', "section soak: a file lacks"),
        ("other.json", "[1]", "is no JSON object"),
        ("bench/rows.json", '{"format": "rdk_cuda.bench"}', "has format version None"),
    ):
        shutil.rmtree(results, ignore_errors=True)
        file = results / name
        file.parent.mkdir(parents=True)
        file.write_text(content)
        assert page.main(["--results", str(results), "--output", str(output)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert not output.exists()


def test_folders_that_are_not_there_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert page.main(["--results", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    arguments = ["--results", str(tmp_path / "empty"), "--output", str(tmp_path / "no" / "page")]
    assert page.main(arguments) == 2
    assert "needs a file to write to" in capsys.readouterr().err


def test_ctrl_c_leaves_no_half_of_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(page, "document", interrupted)
    assert page.main(["--output", str(tmp_path / "report.html")]) == 130
    assert capsys.readouterr().err == "Interrupted: nothing was written.\n"
    assert list(tmp_path.iterdir()) == []


def test_markup_is_kept_and_text_escaped() -> None:
    assert escaped("a < b") == "a &lt; b"
    assert escaped(Html("<b>")) == "<b>"
    assert element("a", element("b", "&"), href='"') == '<a href="&quot;"><b>&amp;</b></a>'
    made = table(("name", "<"), [("x", 1)], "&")
    assert '<th scope="row">x</th><td>1</td>' in made
    assert "<caption>&amp;</caption>" in made


def test_a_row_that_is_in_no_file_cannot_be_cited(tmp_path: Path) -> None:
    evidence = Evidence(tmp_path, tmp_path / "report.html")
    with pytest.raises(KeyError):
        evidence.cite({"median_us": 1}, "1")
