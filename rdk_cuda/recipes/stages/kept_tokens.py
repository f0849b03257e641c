"""The tokens that a pruned drafter keeps: those with the best scores, or those that are named."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ...integrations.token_maps import TokenMapError, read_token_map
from ...vocabulary import Vocabulary
from ..errors import InputError
from ..recording import Recording
from ..request import Request

SCORES = ("probability", "frequency")
"""How tokens to keep are chosen: by mean target probability, or by count."""


def kept_tokens(
    recording: Recording,
    documents: Iterable[Sequence[int]],
    keep: float,
    keep_by: str = SCORES[0],
    always: Sequence[int] | Tensor = (),
) -> Vocabulary:
    """The tokens with the best scores: a share `keep` of the vocabulary, `always` among them."""
    if keep_by not in SCORES:
        raise ValueError(f"kept_tokens: keep_by is {keep_by!r}; needs one of {', '.join(SCORES)}")
    (temperature,), size = recording.temperatures, recording.counts.numel()
    if keep_by == "frequency":
        ids = torch.tensor([id for ids in documents for id in ids], dtype=torch.int64, device="cpu")
        scores = ids.bincount(minlength=size)
    else:
        scores = recording.mean_probs_at(temperature)
    return Vocabulary.most_likely(scores, max(1, round(keep * size)), always=always)


def named_tokens(request: Request, size: int, always: Tensor) -> Vocabulary | None:
    """The tokens of `--kept` and those that are always kept; None without `--kept`."""
    if request.kept is None:
        for keep in request.keep:
            if (count := max(1, round(keep * size))) < always.numel():
                raise InputError(
                    f"--keep {keep:g} is {count} tokens, fewer than the {always.numel()} special "
                    "tokens and single bytes that are always kept; keep more"
                )
        return None
    try:
        ids = read_token_map(request.kept, size, mask_repeats=True).draft_ids
    except OSError as error:
        reason = f"{error.strerror}; needs a readable file"
        raise InputError(f"--kept {request.kept}: {reason}") from error
    except TokenMapError as error:
        raise InputError(f"--kept {error}") from error
    return Vocabulary(torch.cat([ids[ids >= 0], always[~torch.isin(always, ids)]]), size)
