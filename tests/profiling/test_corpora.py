"""The report's texts: what is evaluated on was not calibrated on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.corpus import held_out_files, training_files
from profiling.studies.acceptance import corpora
from profiling.studies.acceptance.corpora import Corpus, Document

FIRST = "A licence that says in many words that you may do as you please with all of this text."
SECOND = "Another paragraph, about warranties, of which there are none whatever happens to anyone."


@pytest.fixture(scope="module")
def prose() -> Corpus:
    return corpora.prose()


def runs_of(documents: list[Document]) -> set[tuple[str, ...]]:
    return {
        run
        for document in documents
        for paragraph in document.text.split("\n\n")
        for run in corpora.shingles(paragraph)
    }


def test_both_parts_of_prose_have_text_and_share_no_document(prose: Corpus) -> None:
    names = [{document.name for document in part} for part in (prose.calibration, prose.held_out)]
    assert all(names)
    assert not names[0] & names[1]
    assert sum(prose.sources.values()) == len(prose.calibration) + len(prose.held_out)
    assert prose.sources["topics"] > 20
    assert sum(len(document.text) for document in prose.held_out) > 50_000


def test_parts_of_prose_share_next_to_nothing_of_their_wording(prose: Corpus) -> None:
    calibration, held_out = runs_of([*prose.calibration]), runs_of([*prose.held_out])
    assert len(calibration & held_out) < 0.02 * len(held_out)


def test_without_the_removal_of_repetitions_the_parts_do_share_their_wording(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corpora, "without_repetitions", list)
    prose = corpora.prose()
    calibration, held_out = runs_of([*prose.calibration]), runs_of([*prose.held_out])
    assert len(calibration & held_out) > 0.1 * len(held_out)


def test_sources_that_are_missing_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing() -> Iterator[Document]:
        return iter(())

    monkeypatch.setattr(corpora, "COMMON_LICENSES", tmp_path / "absent")
    monkeypatch.setattr(corpora, "licenses_of_distributions", nothing)
    monkeypatch.setattr(corpora, "licenses_of_python", nothing)
    assert set(corpora.prose().sources) == {"topics"}
    monkeypatch.setattr(corpora, "standard_library", lambda: tmp_path)
    with pytest.raises(FileNotFoundError, match="only 0 documents"):
        corpora.prose()


def test_code_is_that_of_the_demo() -> None:
    code = corpora.code()
    assert len(code.calibration) == len(training_files())
    assert len(code.held_out) == len(held_out_files()) == 14
    assert not {*code.calibration} & {*code.held_out}
    assert set(code.sources) == {"library"}
