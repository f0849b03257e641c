"""What a drafter with another tokenizer reads in the place of each of the target's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from rdk_cuda import Affinity
from rdk_cuda.drafter import SavedDrafterError
from rdk_cuda.integrations.huggingface.text_drafter import AFFINITY, save_text_drafter
from rdk_cuda.integrations.vllm.token_map import load_token_map
from rdk_cuda.vocabulary.token_bytes import token_bytes
from tests.tiny_llamas import llama
from tests.trained_tokenizers import TOKENIZERS


def saved(folder: Path, ours: str, theirs: str) -> tuple[Any, Any]:
    """A directory, and what each tokenizer's tokens spell: the target's and the drafter's."""
    target, drafter = (
        PreTrainedTokenizerFast(tokenizer_object=TOKENIZERS[name]()) for name in (ours, theirs)
    )
    model = llama(len(drafter) + 3, width=8, heads=1)
    sizes = {"draft_size": len(drafter) + 3, "target_size": len(target) + 5}
    affinity = Affinity.between(drafter, target, **sizes)
    save_text_drafter(folder, model, drafter, target, affinity, {})
    return token_bytes(target).spellings, token_bytes(drafter).spellings


@pytest.mark.parametrize(
    ("ours", "theirs"), [("byte-level", "SentencePiece"), ("SentencePiece", "byte-level")]
)
def test_it_reads_its_own_token_of_the_same_bytes_or_the_longest_beginning(
    ours: str, theirs: str, tmp_path: Path
) -> None:
    target, drafter = saved(tmp_path / "drafter", ours, theirs)
    mapped = load_token_map(tmp_path / "drafter")
    known = {spelling for spelling in drafter if isinstance(spelling, bytes)}
    same = other = 0
    for id, spelling in enumerate(target):
        read = int(mapped.reads[id])
        if isinstance(spelling, bytes):
            begin = [spelling[:n] for n in range(len(spelling), 0, -1) if spelling[:n] in known]
            assert (drafter[read] if read >= 0 else None) == (begin[0] if begin else None)
            same += begin[:1] == [spelling]
            other += begin[:1] not in ([], [spelling])
    assert min(same, other) > 50
    assert (mapped.reads[len(target) :] == -1).all()  # no token of the tokenizer
    matched = mapped.vocabulary.draft_ids >= 0
    back = mapped.reads[mapped.vocabulary.draft_ids[matched]]
    assert (back == matched.nonzero()[:, 0]).all()


def test_an_affinity_of_other_sizes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "drafter"
    saved(folder, "byte-level", "SentencePiece")
    Affinity.between({b"a": 0}, {b"a": 0}).save(folder / AFFINITY)
    with pytest.raises(SavedDrafterError, match="load_token_map"):
        load_token_map(folder)
