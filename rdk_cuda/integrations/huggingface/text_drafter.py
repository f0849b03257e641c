"""A drafter with another tokenizer than its target, as a directory.

DIR/drafter/              the drafter, an ordinary Hugging Face model, and its own tokenizer
DIR/tokenizer/            the target's tokenizer
DIR/affinity.safetensors  from the drafter's tokens to the target's
DIR/calibration.json      settings and figures of the calibration
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ...affinity import Affinity, AffinityError
from ...drafter import SavedDrafterError
from . import saved_drafter as core

TOKENIZER, AFFINITY = "tokenizer", "affinity.safetensors"


class SavedText(NamedTuple):
    """What `load_text_drafter` returns: with these, a `SpeculativeDecoder` drafts.

    Attributes:
        model: the drafter with its head, in evaluation mode.
        affinity: from its tokens to the target's.
        drafter_tokenizer, tokenizer: its own, and the target's.
        settings: of the calibration.
    """

    model: Any
    affinity: Affinity
    drafter_tokenizer: Any
    tokenizer: Any
    settings: dict[str, Any]


def is_text_drafter(directory: str | PathLike[str]) -> bool:
    """Whether `save_text_drafter` has written it, and not `save_drafter`."""
    return (Path(directory) / AFFINITY).is_file()


def save_text_drafter(
    directory: str | PathLike[str],
    model: Any,
    drafter_tokenizer: Any,
    tokenizer: Any,
    affinity: Affinity,
    settings: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a directory that `load_text_drafter` reads, atomically.

    Args:
        directory, model, settings, overwrite: as in `save_drafter`.
        drafter_tokenizer, tokenizer: the drafter's own, and the target's.
        affinity: from the drafter's tokens to the target's.

    Raises:
        SavedDrafterError, OSError: as `save_drafter`.
    """
    _refuse_other_size("save_text_drafter", model, affinity)
    text = core.settings_as_json(settings)
    with core.written_whole(Path(directory), overwrite) as unfinished:
        model.save_pretrained(unfinished / core.MODEL)
        drafter_tokenizer.save_pretrained(unfinished / core.MODEL)
        tokenizer.save_pretrained(unfinished / TOKENIZER)
        affinity.save(unfinished / AFFINITY)
        (unfinished / core.SETTINGS).write_text(text, encoding="utf-8")


def load_text_drafter(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> SavedText:
    """Read what `save_text_drafter` wrote, from local files alone, and check that it fits.

    Raises:
        SavedDrafterError: a part that is missing, damaged or does not belong to the others.
    """
    path = Path(directory)
    affinity, settings = load_affinity(path)
    model = core.load_model(path / core.MODEL).to(device)
    _refuse_other_size(f"load_text_drafter: {path / core.MODEL}", model, affinity)
    own, target = (load_tokenizer(path / name) for name in (core.MODEL, TOKENIZER))
    return SavedText(model, affinity.to(device), own, target, settings)


def load_affinity(path: Path) -> tuple[Affinity, dict[str, Any]]:
    """The affinity, on the CPU, and the settings of its calibration."""
    try:
        affinity = Affinity.load(path / AFFINITY)
    except (AffinityError, OSError) as error:
        raise SavedDrafterError(f"load_text_drafter: {error}") from error
    return affinity, core.read_settings(path / core.SETTINGS)


def load_tokenizer(path: Path) -> Any:
    """From local files alone."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever the library raises
        raise SavedDrafterError(f"load_text_drafter: {path}: {error}") from error


def _refuse_other_size(name: str, model: Any, affinity: Affinity) -> None:
    rows = model.get_output_embeddings().weight.shape[0]
    if rows != affinity.draft_size:
        raise SavedDrafterError(
            f"{name}: predicts {rows} tokens, and the affinity leads from {affinity.draft_size}; "
            "needs the affinity of this drafter"
        )
