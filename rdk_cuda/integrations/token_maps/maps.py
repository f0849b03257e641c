"""Reduced vocabularies of other projects, to and from `Vocabulary`.

The order of a map is that of the rows of the drafter's head, in all of them:

- FR-Spec's `freq_*.pt`, a list of target ids, the most frequent first (thunlp/FR-Spec: `remap_copy`
  in `src/model/eagle.cuh`); SGLang's `--speculative-token-map` is the same list
  (sgl-project/sglang: `load_token_map`, `hot_token_id`), as are VocabTrim's (arXiv:2506.22694).
- EAGLE-3's `d2t`, offsets: row i stands for target id i + d2t[i]. Its `t2d` is the mask of these
  ids (SafeAILab/EAGLE: `eagle/traineagle3/cnets.py`; vllm-project/vllm: `llama_eagle3.py`). Some
  converters store ids there instead (ggml-org/llama.cpp, pull request 18039): the two are told
  apart by what they say, and refused where both would do.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..._ops.inputs import check_entries, check_tensor, on_host
from ...files import to_bytes, write_whole
from ...vocabulary import Vocabulary
from .files import D2T, TokenMapError, read_content

Stored: TypeAlias = Literal["offset", "absolute"]
"""How `d2t` says target ids: as offsets to the rows' own numbers, or as they are."""

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def read_token_map(
    path: str | PathLike[str],
    target_size: int,
    *,
    stored: Stored | None = None,
    mask_repeats: bool = False,
) -> Vocabulary:
    """Read the vocabulary that another project's file, or a checkpoint's folder, describes.

    Nothing is downloaded and nothing that is in the file is run. The format shows in the content.

    Args:
        path: a list of ids, written by torch.save or as JSON; or an EAGLE-3 checkpoint, whose `d2t`
            counts: a safetensors file, one of torch.save, or the folder of one, whole or in shards.
        target_size: `V_t`, the width of the target's logits.
        stored: as in `from_d2t`.
        mask_repeats: whether an id that is listed again gets -1 there, which masks that row. A list
            by FR-Spec's script may end with end tokens that it has already. A `d2t` has none.

    Raises:
        TokenMapError: what is there is no map, could run code, or does not fit `V_t`.
        OSError: it cannot be opened.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     torch.save([7, 2, 4], f"{folder}/freq_3.pt")
        ...     read_token_map(f"{folder}/freq_3.pt", target_size=8).draft_ids.tolist()
        [7, 2, 4]
    """
    content = read_content(Path(path), target_size)
    try:
        if not isinstance(content, D2T):
            return from_ids(content, target_size, mask_repeats=mask_repeats)
        if content.head_rows not in (None, content.d2t.numel()):
            raise TokenMapError(
                f"d2t has {content.d2t.numel()} entries and lm_head.weight {content.head_rows} "
                "rows; needs one for each row"
            )
        return from_d2t(content.d2t, target_size, t2d=content.t2d, stored=stored)
    except ValueError as error:
        raise TokenMapError(f"{path}: {error}") from error


def from_ids(
    ids: Tensor | Sequence[int], target_size: int, *, mask_repeats: bool = False
) -> Vocabulary:
    """Make the vocabulary of a head whose row i predicts target token `ids[i]`.

    An id that is listed twice is refused, unless its repeats are to be masked.
    """
    drafts = _integers("ids", ids, target_size)
    inside, needs = (drafts >= 0) & (drafts < target_size), f"0 to {target_size - 1}"
    check_entries("ids", drafts, inside, f"a target id from {needs}", TokenMapError)
    if mask_repeats:
        order = drafts.argsort(stable=True)
        again = torch.zeros_like(drafts, dtype=torch.bool)
        again[order[1:]] = drafts[order].diff() == 0
        drafts = drafts.masked_fill(again, -1)
    try:
        return Vocabulary(drafts, target_size)
    except ValueError as error:
        raise TokenMapError(f"{error}. To mask what is listed again, mask_repeats=True") from error


def from_d2t(
    d2t: Tensor | Sequence[int],
    target_size: int,
    *,
    t2d: Tensor | None = None,
    stored: Stored | None = None,
) -> Vocabulary:
    """Make the vocabulary of an EAGLE-3 head, by its `d2t`, in any order of target ids.

    Args:
        d2t: `[V_d]` integers.
        t2d: `[V_t]` bool, the target tokens that are reached. One without any is EAGLE's buffer
            before it was filled, and is not used.
        stored: whether target id = i + d2t[i] ("offset") or d2t[i] ("absolute"). None: what gives
            distinct ids within `[0, V_t)`, those that `t2d` has; refused if neither does, or both.

    Example:
        >>> from_d2t(torch.tensor([1, 1, 3]), target_size=8).draft_ids.tolist()
        [1, 2, 5]
    """
    offsets = _integers("d2t", d2t, target_size)
    places = torch.arange(offsets.numel(), device="cpu")
    readings = {"offset": offsets + places, "absolute": offsets}
    mask = None if t2d is None else _mask(t2d, target_size)
    if stored is not None:
        if stored not in readings:
            raise ValueError(f"from_d2t: stored is {stored!r}; needs 'offset', 'absolute' or None")
        readings = {stored: readings[stored]}
    wrong = {name: _misfit(ids, mask, target_size) for name, ids in readings.items()}
    fitting = [name for name, reason in wrong.items() if reason is None]
    if not fitting:
        reasons = "; ".join(f"as {name} {reason}" for name, reason in wrong.items())
        raise TokenMapError(f"d2t does not fit: {reasons}")
    if len(fitting) == 2 and offsets.numel() > 1:  # one token is the same either way
        first = {name: ids[:4].tolist() for name, ids in readings.items()}
        raise TokenMapError(
            f"d2t may be offsets (first tokens {first['offset']}) or target ids "
            f"({first['absolute']}), and there is no t2d to tell; say stored='offset' or 'absolute'"
        )
    return Vocabulary(readings[fitting[0]], target_size)


def d2t_tensors(vocabulary: Vocabulary) -> dict[str, Tensor]:
    """Make `d2t` `[V_d]` int64, offsets, and `t2d` `[V_t]` bool, for an EAGLE-3 checkpoint.

    vLLM and SGLang read `d2t` alone, in any order of tokens. Trainers pick the target's logits by
    `t2d`, so for them the tokens have to be in ascending order. A drafter token without a target
    id, which `d2t` has no way to say, is refused.
    """
    ids = _known_ids("d2t_tensors", vocabulary)
    mask = torch.zeros(vocabulary.target_size, dtype=torch.bool, device="cpu")
    mask[ids] = True
    return {"d2t": ids - torch.arange(ids.numel(), device="cpu"), "t2d": mask}


def write_d2t(vocabulary: Vocabulary, path: str | PathLike[str]) -> None:
    """Write `d2t_tensors` as safetensors, atomically.

    An engine reads them from the drafter's own checkpoint, to which they have to be added.
    """
    content = to_bytes(d2t_tensors(vocabulary), {"format": "pt"})
    write_whole(Path(path), lambda beside: beside.write_bytes(content))


def write_hot_tokens(vocabulary: Vocabulary, path: str | PathLike[str]) -> None:
    """Write SGLang's `--speculative-token-map`, FR-Spec's list of ids, atomically.

    Raises:
        ValueError: a drafter token without a target id, which the list has no way to say.
    """
    content = io.BytesIO()  # to a full disk, torch would raise an error of its own
    torch.save(_known_ids("write_hot_tokens", vocabulary).tolist(), content)
    write_whole(Path(path), lambda beside: beside.write_bytes(content.getvalue()))


def _known_ids(name: str, vocabulary: Vocabulary) -> Tensor:
    unknown = (vocabulary.draft_ids < 0).nonzero()
    if unknown.numel():
        raise ValueError(
            f"{name}: drafter token {int(unknown[0])} has no target id; needs a head without it"
        )
    return vocabulary.draft_ids


def _integers(name: str, values: Tensor | Sequence[int], target_size: int) -> Tensor:
    needs = f"needs [V_d] target ids, integers with V_d from 1 to V_t = {target_size}"
    try:
        tensor = on_host(values)
    except (TypeError, ValueError, RuntimeError) as error:  # of text, a mapping, a meta tensor
        raise TokenMapError(f"{name} is a {type(values).__name__}; {needs}") from error
    plain = tensor.layout == torch.strided and tensor.dtype in _INTEGERS
    # An expanded tensor has any length in 8 bytes.
    if not plain or tensor.dim() != 1 or not 1 <= tensor.numel() <= target_size:
        raise TokenMapError(
            f"{name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; {needs} (of scores, "
            "Vocabulary.most_likely keeps the highest)"
        )
    return tensor.to(torch.int64)


def _mask(t2d: Tensor, target_size: int) -> Tensor | None:
    check_tensor("t2d", t2d, torch.bool, target_size, error=TokenMapError)
    return t2d.cpu() if bool(t2d.any()) else None


def _misfit(ids: Tensor, mask: Tensor | None, target_size: int) -> str | None:
    """Why these are not the ids of a head's rows, or None if they may be."""
    if int(ids.min()) < 0 or int(ids.max()) >= target_size:
        return f"its ids are {int(ids.min())} to {int(ids.max())}, outside [0, {target_size})"
    if ids.unique().numel() < ids.numel():
        counts = ids.bincount()
        return f"it has {int(counts.argmax())} {int(counts.max())} times"
    if mask is not None and not torch.equal(ids.sort().values, mask.nonzero().flatten()):
        return f"it has {ids.numel()} tokens, not the {int(mask.sum())} that t2d marks"
    return None
