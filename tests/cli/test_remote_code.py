"""No command runs code that a model's directory brings along, whatever is typed."""

from __future__ import annotations

import ast
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.__main__ import main
from rdk_cuda.integrations.huggingface.saved_drafter import SavedDrafterError, load_drafter

from .calibrating import command, refusal, write_texts

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _in_one_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(autouse=True)
def says_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 99))


def add_code(directory: Path, marker: Path) -> None:
    """Classes of the directory's own, for which Transformers asks whether to run its code."""
    code = f"open({str(marker)!r}, 'w').close()\nraise ImportError('ran')\n"
    (directory / "own.py").write_text(code)
    for name, classes in {
        "config.json": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        "tokenizer_config.json": {"AutoTokenizer": ["own.Tokenizer", None]},
    }.items():
        file = directory / name
        if file.exists():
            settings = json.loads(file.read_text())
            changed = {"model_type": "own", "tokenizer_class": "Own", "auto_map": classes}
            file.write_text(json.dumps({**settings, **changed}))


@pytest.mark.parametrize("spoiled", ["target", "drafter"])
def test_calibrate_never_runs_it(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], spoiled: str
) -> None:
    add_code(tmp_path / spoiled, tmp_path / "marker")
    files = write_texts(tmp_path / "text")
    answer = refusal(capsys, command(pair, files, tmp_path / "out"))
    assert f"--{spoiled} {tmp_path / spoiled}: " in answer
    assert "code" in answer
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("spoiled", ["target", "saved/drafter"])
def test_evaluate_never_runs_it(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], spoiled: str
) -> None:
    files = write_texts(tmp_path / "text")
    assert main(command(pair, files, tmp_path / "saved")) == 0
    add_code(tmp_path / spoiled, tmp_path / "marker")
    argv = ["evaluate", tmp_path / "saved", "--target", pair[0], "--text", *files]
    answer = refusal(capsys, [*map(str, argv), "--output", str(tmp_path / "results")])
    assert "code" in answer
    assert not (tmp_path / "marker").exists()
    if spoiled != "target":
        with pytest.raises(SavedDrafterError, match="code"):
            load_drafter(tmp_path / "saved")
        assert not (tmp_path / "marker").exists()


def test_inspect_never_runs_it(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Affinity.intersection(Vocabulary.most_likely(torch.ones(400), 9)).save(tmp_path / "affinity")
    add_code(pair[0], tmp_path / "marker")
    answer = refusal(capsys, ["inspect", str(tmp_path / "affinity"), "--tokenizer", str(pair[0])])
    assert "code" in answer
    assert not (tmp_path / "marker").exists()


def trusting(source: str) -> Iterator[int]:
    """Lines of calls that load something of Transformers without `trust_remote_code=False`."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "from_pretrained"
            and not any(
                keyword.arg == "trust_remote_code"
                and isinstance(keyword.value, ast.Constant)
                and keyword.value.value is False
                for keyword in node.keywords
            )
        ):
            yield node.lineno


def test_everything_that_is_loaded_is_loaded_without_code_of_its_own() -> None:
    files = [
        file
        for folder in ("profiling", "rdk_cuda")
        for file in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = [
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in trusting(file.read_text())
    ]
    assert not found
    assert sum(".from_pretrained(" in file.read_text() for file in files) >= 2


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("AutoModel.from_pretrained(x)", [1]),
        ("AutoModel.from_pretrained(x, trust_remote_code=True)", [1]),
        ("AutoModel.from_pretrained(x, trust_remote_code=asked)", [1]),
        ("AutoModel.from_pretrained(x, trust_remote_code=False)", []),
    ],
)
def test_that_check_finds_every_other_call(call: str, lines: list[int]) -> None:
    assert list(trusting(call)) == lines
