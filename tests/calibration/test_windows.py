"""Windows of a text: spread over its documents, none of them twice."""

import pytest

from rdk_cuda.recipes.inputs.documents import Window, cut_windows


def test_windows_are_stretches_of_their_documents_without_overlap() -> None:
    documents = [list(range(100 * d, 100 * d + 40)) for d in range(5)]
    windows = cut_windows(documents, positions=100, length=10)
    assert len(windows) == 10
    assert {window.document for window in windows} == set(range(5))
    seen = [token for window in windows for token in window.ids]
    assert len(set(seen)) == len(seen) == 100
    for window in windows:
        start = documents[window.document].index(window.ids[0])
        assert window.ids == documents[window.document][start : start + 10]


def test_a_window_within_a_document_begins_as_texts_do() -> None:
    windows = cut_windows([[0, 1, 2, 3, 4, 5]], positions=6, length=3, first=0)
    assert windows == [Window(0, [0, 1, 2]), Window(0, [0, 3, 4])]


def test_documents_that_are_too_short_are_passed_over() -> None:
    assert cut_windows([[1], [1, 2, 3], [4]], 3, 3) == [Window(1, [1, 2, 3])]


def test_text_without_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="the longest of 2 documents has 3 tokens; needs one of 4"):
        cut_windows([[1, 2, 3], [1]], 10, 4)
    with pytest.raises(ValueError, match="longest of 0 documents"):
        cut_windows([], 10, 4)


def test_contexts_end_at_each_position() -> None:
    assert Window(0, [7, 8, 9]).contexts == [[7], [7, 8], [7, 8, 9]]
