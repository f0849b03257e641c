"""A calibrated drafter as a directory: its model, and a `PrunedDrafter` for it.

    DIR/drafter/                    the drafter, an ordinary Hugging Face model, and its tokenizer
    DIR/pruned_drafter.safetensors  what `PrunedDrafter.save` writes
    DIR/calibration.json            settings and figures of the calibration

The model in `drafter/` has its full head. A Hugging Face configuration has one `vocab_size` for
both the embedding and the head. The embedding stays at V_t, since every token is still read, so a
model with a smaller head could not be loaded by `AutoModelForCausalLM` without code of its own.
Dynamic tokens need the exact rows of the full head anyway, and with tied embeddings it is free.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from ...decoding.lengths import length_of
from ...drafter import PrunedDrafter, SavedDrafterError
from ...files import folder_written_whole, read_json, read_small
from .model import HuggingFaceModel

MODEL, PRUNED, SETTINGS = "drafter", "pruned_drafter.safetensors", "calibration.json"
STEERING = "steering.safetensors"  # of a drafter that `rdk_cuda.labs.steering` reads

_FORMAT, _VERSION = "rdk_cuda.drafter", "1"


def save_drafter(
    directory: str | PathLike[str],
    model: Any,
    tokenizer: Any,
    drafter: PrunedDrafter,
    settings: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a directory that `load_drafter` reads, atomically.

    Args:
        directory: must not exist, unless it is to be overwritten.
        model: the drafter with its full head, from `AutoModelForCausalLM`; or an
            `rdk_cuda.integrations.eagle3.Eagle3Checkpoint`, which `load_state_drafter` reads.
        tokenizer: the drafter's, which is also the target's.
        drafter: what it was pruned to.
        settings: anything that JSON can hold.
        overwrite: replace a directory that is empty or holds saved drafters.

    Raises:
        SavedDrafterError: parts that do not belong together, settings that JSON cannot hold, or a
            directory that exists and may not be replaced.
        OSError: it cannot be written.
    """
    drafter.check("save_drafter")
    refuse_other_model("save_drafter", model, drafter)
    text = settings_as_json(settings)
    with written_whole(Path(directory), overwrite) as unfinished:
        model.save_pretrained(unfinished / MODEL)
        tokenizer.save_pretrained(unfinished / MODEL)
        drafter.save(unfinished / PRUNED)
        (unfinished / SETTINGS).write_text(text, encoding="utf-8")


def load_drafter(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[Any, PrunedDrafter, dict[str, Any]]:
    """Read what `save_drafter` wrote, from local safetensors files alone, and check all of it.

    Returns:
        The drafter with its full head, in the dtype that it was saved in and in evaluation mode;
        what it was pruned to; the settings of the calibration.

    Raises:
        SavedDrafterError: a file that is missing, truncated, altered, of another kind or version,
            or that does not belong to the others.
        OSError: one that cannot be opened.
    """
    drafter, settings = load_pruned(directory, device=device)
    model = load_model(Path(directory) / MODEL).to(device)
    refuse_other_model(f"load_drafter: {Path(directory) / MODEL}", model, drafter)
    return model, drafter, settings


def load_pruned(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[PrunedDrafter, dict[str, Any]]:
    """As `load_drafter`, without the model."""
    if os.path.lexists(Path(directory) / STEERING):
        raise SavedDrafterError(
            f"load_drafter: {directory} is steered by the target's states; needs to be read by "
            f"`rdk_cuda.labs.steering.generate_from({str(directory)!r})`, or to have no {STEERING}"
        )
    return read_pruned(directory, device=device)


def read_pruned(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[PrunedDrafter, dict[str, Any]]:
    """Read what `load_pruned` reads, whatever else is in the directory."""
    path = Path(directory)
    if not path.is_dir():
        raise SavedDrafterError(
            f"load_drafter: {path} is no directory; needs one that `python -m rdk_cuda calibrate` "
            "has written"
        )
    for name in (MODEL, PRUNED, SETTINGS):
        if not (path / name).exists():
            raise SavedDrafterError(
                f"load_drafter: {path} has no {name}; needs the whole directory of a saved drafter"
            )
    settings = read_settings(path / SETTINGS)
    return PrunedDrafter.load(path / PRUNED, device), settings


def drafting_model(model: Any, drafter: PrunedDrafter) -> HuggingFaceModel:
    """The model with the small head, for `SpeculativeDecoder`; dynamic tokens use its full head."""
    return HuggingFaceModel(model, head=drafter.weight, head_bias=drafter.bias)


def calibrated_drafts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`length` and `draft_length` as `calibrate --draft-cost` found them; none if it was not asked.

    Raises:
        SavedDrafterError: settings that no calibration has written.
    """
    found = settings.get("drafts")
    if found is None:
        return {}
    try:
        rule, most = found["length"], found["draft_length"]
        if type(most) is not int or most < 1:
            raise ValueError(f"draft_length is {most!r}; needs a whole number, at least 1")
        return {"length": None if rule is None else length_of(rule), "draft_length": most}
    except (KeyError, TypeError, ValueError) as error:
        raise SavedDrafterError(f"load_drafter: {SETTINGS}, drafts: {error}") from error


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Only an empty directory or saved drafters are ever replaced, and only if asked."""
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise SavedDrafterError(
            f"save_drafter: {path} exists; name another directory, or allow overwriting it"
        )
    folder = path.is_dir() and not path.is_symlink()
    if not folder or not (_is_saved(path) or all(map(_is_saved, path.iterdir()))):
        raise SavedDrafterError(
            f"save_drafter: {path} is not a saved drafter (it has no {SETTINGS} of one) and is not "
            "overwritten; name another directory"
        )


def _is_saved(path: Path) -> bool:
    """Whether this is a drafter's directory, of any version."""
    try:
        _content(path / SETTINGS)
    except (OSError, SavedDrafterError):
        return False
    return True


def written_whole(path: Path, overwrite: bool) -> AbstractContextManager[Path]:
    """A folder that becomes `path` at the end, unless `path` may not be replaced."""
    return folder_written_whole(path, lambda: refuse_existing(path, overwrite))


def refuse_other_model(name: str, model: Any, drafter: PrunedDrafter) -> None:
    """A model of another width or vocabulary than the head and the affinity."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None and not hasattr(model, "head_shape"):
        raise SavedDrafterError(
            f"{name}: {type(model).__name__} has no LM head; needs a causal language model"
        )
    got = list(model.head_shape if head is None else head.weight.shape)
    needs = [drafter.affinity.target_size, drafter.weight.shape[1]]
    if got != needs:
        raise SavedDrafterError(
            f"{name}: the LM head of {type(model).__name__} is {got}; needs [V_t, d] = {needs}, "
            "as affinity and small head have them: the drafter with its full head"
        )


def settings_as_json(settings: Mapping[str, Any]) -> str:
    """Make the text of `calibration.json`; a `SavedDrafterError` if JSON cannot hold it."""
    content = {"format": _FORMAT, "format_version": _VERSION, "settings": dict(settings)}
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise SavedDrafterError(
            f"save_drafter: settings cannot be JSON ({error}); needs text, finite numbers, None, "
            "and lists and dictionaries of them"
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a `calibration.json`."""
    content = _content(path)
    if content.get("format_version") != _VERSION:
        raise SavedDrafterError(
            f"load_drafter: {path} has format version {content.get('format_version')!r}; this "
            f"rdk_cuda reads version {_VERSION} (a higher number needs a newer rdk_cuda)"
        )
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise SavedDrafterError(f"load_drafter: {path} has no settings; save the drafter again")
    return settings


def _content(path: Path) -> dict[str, Any]:
    """Read a `calibration.json`, if a drafter was saved with it."""
    try:
        content = read_json(path)
    except ValueError as error:
        raise SavedDrafterError(
            f"load_drafter: {path} is not JSON ({error}); save the drafter again"
        ) from error
    content = content if isinstance(content, dict) else {}
    if content.get("format") != _FORMAT:
        raise SavedDrafterError(
            f"load_drafter: {path} is of format {content.get('format')!r}; needs {_FORMAT!r}, as a "
            "saved drafter has it"
        )
    return content


def load_model(directory: Path) -> Any:
    """The language model in a directory, in evaluation mode, from local safetensors files."""
    from transformers import AutoModelForCausalLM

    reads_states = SavedDrafterError(
        f"load_drafter: {directory} has a drafter that reads its target's states; needs "
        "Generate.from_directory(..., target=), or "
        "rdk_cuda.integrations.mtp.load_state_drafter, and the target"
    )
    if not (directory / "config.json").is_file():
        raise SavedDrafterError(
            f"load_drafter: {directory} has no config.json; needs the model that was saved there"
        )
    try:
        config = read_small(directory / "config.json")
    except ValueError as error:
        raise SavedDrafterError(f"load_drafter: {directory / 'config.json'} {error}") from error
    if b'"draft_vocab_size"' in config or b'"MultiTokenHead"' in config:  # EAGLE-3's, or of `mtp`
        raise reads_states
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            directory,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype="auto",
            output_loading_info=True,
        )
    except Exception as error:  # whatever a library of hundreds of architectures may raise
        raise SavedDrafterError(f"load_drafter: {directory}: {error}") from error
    if "fc.weight" in report["unexpected_keys"]:  # of EAGLE and EAGLE-2
        raise reads_states
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise SavedDrafterError(
            f"load_drafter: {directory} lacks {len(missing)} weights of a {type(model).__name__}, "
            f"as {missing[0]}; needs a whole causal language model"
        )
    return model.eval()
