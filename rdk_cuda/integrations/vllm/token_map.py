"""A drafter with another tokenizer, for an engine that keeps a context as the target's tokens."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ...affinity import Affinity
from ...drafter import SavedDrafterError
from ...vocabulary import Vocabulary
from ...vocabulary.token_bytes import longest_beginning, matching_ids, token_bytes
from ..huggingface.saved_drafter import MODEL
from ..huggingface.text_drafter import TOKENIZER, load_affinity, load_tokenizer


class TokenMap(NamedTuple):
    """What `load_token_map` returns: the drafter reads and drafts target tokens, one by one.

    Attributes:
        affinity: from its tokens to the target's.
        vocabulary: which target token each of its tokens has the bytes of.
        reads: `[V_t]` int64, what it reads in the place of each target token: its own of the same
            bytes, or else the longest that begins it; -1 if there is none.
    """

    affinity: Affinity
    vocabulary: Vocabulary
    reads: Tensor


def load_token_map(directory: str | PathLike[str]) -> TokenMap:
    """For an engine that keeps a context as the target's tokens, and does not retokenise it.

    Raises:
        SavedDrafterError: as in `load_text_drafter`.
    """
    path = Path(directory)
    affinity, _ = load_affinity(path)
    drafter, target = (token_bytes(load_tokenizer(path / name)) for name in (MODEL, TOKENIZER))
    sizes = {"draft_size": affinity.draft_size, "target_size": affinity.target_size}
    ids = drafter.ids()
    reads = torch.full((affinity.target_size,), -1, dtype=torch.int64, device="cpu")
    try:
        vocabulary = Vocabulary.between(drafter, target, **sizes)
        for id, same in enumerate(matching_ids(target, drafter)):
            reads[id] = same if same >= 0 else longest_beginning(target.spellings[id], ids)
    except (ValueError, IndexError) as error:  # tokenizers of other sizes
        raise SavedDrafterError(f"load_token_map: {path}: {error}") from error
    return TokenMap(affinity, vocabulary, reads)
