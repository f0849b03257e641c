"""Which tokens a pruned drafter keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rdk_cuda import Vocabulary
from rdk_cuda.calibration.recording import Recording
from rdk_cuda.integrations.token_maps import TokenMapError, read_token_map
from rdk_cuda.vocabulary.indispensable import indispensable_tokens

from .documents import Document
from .errors import InputError
from .models import Models
from .request import Request

Choice = Callable[[Recording], Vocabulary]
"""From a recording at one temperature."""


def choice_of_tokens(
    models: Models, request: Request, keep: float, documents: Sequence[Document]
) -> Choice:
    """Which tokens to keep, and always what no drafter should lose; refuses before long work."""
    size, always = models.vocabulary_size, indispensable_tokens(models.tokenizer)
    if request.kept is not None:
        ids = ids_of_file(request.kept, size)
        vocabulary = Vocabulary(torch.cat([ids, always[~torch.isin(always, ids)]]), size)
        return lambda recording: vocabulary
    count = max(1, round(keep * size))
    if always.numel() > count:
        raise InputError(
            f"--keep {keep:g} is {count} tokens, fewer than the {always.numel()} special "
            "tokens and single bytes that are always kept; keep more"
        )

    def choose(recording: Recording) -> Vocabulary:
        (temperature,) = recording.temperatures
        scores = {
            "probability": recording.mean_probs_at(temperature),
            "frequency": counts_of(documents, size),
            "variance": recording.variance_at(temperature),
        }[request.keep_by]
        return Vocabulary.most_likely(scores, count, always=always)

    return choose


def counts_of(documents: Sequence[Document], size: int) -> Tensor:
    """`[V_t]`, how often each token is in the whole text, also where the models do not read it."""
    counts = torch.zeros(size, dtype=torch.int64, device="cpu")
    for document in documents:
        ids = torch.tensor(document.ids, dtype=torch.int64, device="cpu")
        counts += ids.bincount(minlength=size)
    return counts


def ids_of_file(file: Path, size: int) -> Tensor:
    """The target ids of a map: a list as other projects keep it, or an EAGLE-3 checkpoint."""
    try:
        return read_token_map(file, size).draft_ids
    except OSError as error:
        raise InputError(f"--kept {file}: {error.strerror}; needs a readable file") from error
    except TokenMapError as error:
        raise InputError(f"--kept {error}") from error
