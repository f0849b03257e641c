"""A calibrated drafter as a directory: everything that drafting needs, beside each other.

    DIR/drafter/                the drafter, an ordinary Hugging Face model, and its tokenizer
    DIR/head.safetensors        the small head [V_d, d], its bias, and the ids of the kept tokens
    DIR/affinity.safetensors    from its rows to the target's tokens, as Affinity.save writes it
    DIR/successors.safetensors  only where dynamic tokens come from a table
    DIR/calibration.json        settings and figures of the calibration

The model in `drafter/` has its full head. A Hugging Face configuration has one `vocab_size` for
the embedding, which stays at V_t since every token is still read, and for the head: a model whose
head is smaller could not be loaded by `AutoModelForCausalLM` without code of its own. Dynamic
tokens need the exact rows of the full head anyway, and with tied embeddings it costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ...affinity import Affinity, AffinityError
from ...calibration.drafter import PrunedDrafter
from ...dynamic_tokens import CombinedTokens, SuccessorTable, recent_and_successors
from ...files import to_bytes
from ...vocabulary import Vocabulary
from .model import HuggingFaceModel
from .saved_directory import (
    SETTINGS,
    SavedDrafterError,
    refuse_existing,
    written_whole,
)

__all__ = [
    "MODEL",
    "SUCCESSORS",
    "SavedDrafterError",
    "drafting_model",
    "load_drafter",
    "load_head",
    "refuse_existing",
    "refuse_other_model",
    "save_drafter",
]

MODEL, HEAD, AFFINITY = "drafter", "head.safetensors", "affinity.safetensors"
SUCCESSORS = "successors.safetensors"

_FORMATS = {HEAD: "rdk_cuda.head", SETTINGS: "rdk_cuda.drafter"}
_VERSION = 1


class Saveable(Protocol):
    """What writes itself to a file."""

    def save(self, path: Path, /) -> None:
        """Write to `path`."""


def save_drafter(
    directory: str | PathLike[str],
    model: Any,
    tokenizer: Any,
    drafter: PrunedDrafter,
    settings: Mapping[str, Any],
    *,
    successors: Saveable | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a directory that `load_drafter` reads, whole or not at all.

    It is written beside, under a hidden name, and renamed when it is complete. A run that is
    killed leaves no more than that hidden directory, `.NAME.*.tmp`.

    Args:
        directory: must not exist, unless it is to be overwritten.
        model: the drafter with its full head, from `AutoModelForCausalLM`.
        tokenizer: its own, which is the target's.
        drafter: what it was pruned to. Its `dynamic_tokens`, a function, is not saved, but made
            again from what follows.
        settings: what JSON can hold. Under `dynamic_tokens` the `width`, `recent` and `window` of
            `recent_and_successors`, if it has them, and whether there are `successors`.
        successors: the table that dynamic tokens come from, if there is one.
        overwrite: replace a directory that holds a saved drafter, or nothing, as a whole. It is
            gone for the instant between two renamings.

    Raises:
        SavedDrafterError: parts that do not belong together, settings that JSON cannot hold, or a
            directory that exists and may not be replaced.
        OSError: it cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from tokenizers import Tokenizer, models
        >>> from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
        >>> from rdk_cuda.calibration import prune_head
        >>> size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 16}
        >>> config = LlamaConfig(**size, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> words = Tokenizer(models.WordLevel({f"word{id}": id for id in range(50)}))
        >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
        >>> vocabulary = Vocabulary.most_likely(torch.ones(50), 10)
        >>> head = prune_head(model.lm_head.weight, None, vocabulary)
        >>> drafter = PrunedDrafter(vocabulary, Affinity.intersection(vocabulary), *head)
        >>> with TemporaryDirectory() as folder:
        ...     save_drafter(f"{folder}/pruned", model, tokenizer, drafter, {"keep": 0.2})
        ...     loaded, pruned, settings = load_drafter(f"{folder}/pruned")
        >>> pruned.vocabulary == vocabulary, settings
        (True, {'keep': 0.2})
        >>> drafting_model(loaded, pruned).vocabulary_size
        10
    """
    path = Path(directory)
    _refuse_disagreement("save_drafter", drafter)
    refuse_other_model("save_drafter", model, drafter)
    text = _settings_as_json(settings)
    with written_whole(path, overwrite) as unfinished:
        model.save_pretrained(unfinished / MODEL)
        tokenizer.save_pretrained(unfinished / MODEL)
        _write_head(unfinished / HEAD, drafter)
        drafter.affinity.save(unfinished / AFFINITY)
        if successors is not None:
            successors.save(unfinished / SUCCESSORS)
        (unfinished / SETTINGS).write_text(text, encoding="utf-8")


def load_drafter(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[Any, PrunedDrafter, dict[str, Any]]:
    """Reads what `save_drafter` wrote, from local safetensors files alone, and checks all of it.

    Returns:
        The drafter with its full head, in the dtype that it was saved in and in evaluation mode;
        what it was pruned to, with its `dynamic_tokens` if its settings describe them; the settings
        of the calibration.

    Raises:
        SavedDrafterError: a file that is missing, truncated, altered, of another kind or version,
            or that does not belong to the others.
        OSError: one that cannot be opened.
        ImportError: without transformers (`pip install --no-build-isolation '.[demo]'`).

    See `save_drafter` for an example.
    """
    drafter, settings = load_head(directory, device=device)
    model = _load_model(Path(directory) / MODEL).to(device)
    refuse_other_model(f"load_drafter: {Path(directory) / MODEL}", model, drafter)
    return model, drafter, settings


def load_head(
    directory: str | PathLike[str], *, device: torch.device | str = "cpu"
) -> tuple[PrunedDrafter, dict[str, Any]]:
    """As `load_drafter`, without the model."""
    path = Path(directory)
    if not path.is_dir():
        raise SavedDrafterError(f"load_drafter: {path} is no directory; needs a saved drafter's")
    for name in (MODEL, HEAD, AFFINITY, SETTINGS):
        if not (path / name).exists():
            raise SavedDrafterError(
                f"load_drafter: {path} has no {name}; needs the whole directory of a saved drafter"
            )
    settings = _read_settings(path / SETTINGS)
    try:
        affinity = Affinity.load(path / AFFINITY, device)
    except AffinityError as error:
        raise SavedDrafterError(str(error)) from error
    vocabulary, weight, bias = _read_head(path / HEAD, affinity.target_size)
    bias = None if bias is None else bias.to(device)
    drafter = PrunedDrafter(vocabulary, affinity, weight.to(device), bias)
    _refuse_disagreement(f"load_drafter: {path / HEAD}", drafter)
    return replace(drafter, dynamic_tokens=_dynamic_tokens(path, vocabulary, settings)), settings


def drafting_model(model: Any, drafter: PrunedDrafter) -> HuggingFaceModel:
    """The model with the small head, for `SpeculativeDecoder`; its full head serves dynamic tokens.

    See `save_drafter` for an example.
    """
    return HuggingFaceModel(model, head=drafter.weight, head_bias=drafter.bias)


def _dynamic_tokens(
    path: Path, vocabulary: Vocabulary, settings: Mapping[str, Any]
) -> CombinedTokens | None:
    said = settings.get("dynamic_tokens")
    if said is None:
        return None
    try:
        sizes = {**said}
        table = SuccessorTable.load(path / SUCCESSORS) if (path / SUCCESSORS).exists() else None
        if sizes.pop("successors", False) and table is None:
            raise ValueError(f"needs the file {SUCCESSORS}, which is not there")
        if table is not None and table.offsets.numel() != vocabulary.target_size + 1:
            raise ValueError(f"{path / SUCCESSORS} is of another vocabulary")
        return recent_and_successors(vocabulary, table, **sizes)
    except (TypeError, ValueError) as error:
        raise SavedDrafterError(
            f"load_drafter: {path / SETTINGS}: dynamic_tokens is {said} ({error}); needs width, "
            f"recent and window, and the table that was saved with them"
        ) from error


# What has to agree.


def _refuse_disagreement(name: str, drafter: PrunedDrafter) -> None:
    """A head and an affinity of different drafters."""
    weight, bias = drafter.weight, drafter.bias
    vocabulary, affinity = drafter.vocabulary, drafter.affinity
    rows = affinity.draft_size
    if weight.dim() != 2 or weight.shape[0] != rows or not weight.is_floating_point():
        raise SavedDrafterError(
            f"{name}: the head's weight has shape {list(weight.shape)} and dtype {weight.dtype}; "
            f"needs floating-point [V_d, d] with V_d = {rows}, the drafter tokens of the affinity"
        )
    if bias is not None and (bias.shape != (rows,) or not bias.is_floating_point()):
        raise SavedDrafterError(
            f"{name}: the head's bias has shape {list(bias.shape)} and dtype {bias.dtype}; needs "
            f"floating-point [V_d] = [{rows}]"
        )
    if not all(bool(part.isfinite().all()) for part in (weight, bias) if part is not None):
        raise SavedDrafterError(f"{name}: the head is not finite; needs finite numbers")
    if vocabulary.target_size != affinity.target_size or vocabulary.draft_size > rows:
        raise SavedDrafterError(
            f"{name}: the kept tokens are {vocabulary.draft_size} of {vocabulary.target_size}, the "
            f"affinity leads from {rows} drafter tokens to {affinity.target_size}; needs kept "
            "tokens of the same target, and a row for each"
        )


def refuse_other_model(name: str, model: Any, drafter: PrunedDrafter) -> None:
    """A model of another width or vocabulary than the head and the affinity."""
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        raise SavedDrafterError(
            f"{name}: {type(model).__name__} has no LM head; needs a causal language model"
        )
    got = list(head.weight.shape)
    needs = [drafter.affinity.target_size, drafter.weight.shape[1]]
    if got != needs:
        raise SavedDrafterError(
            f"{name}: the LM head of {type(model).__name__} is {got}; needs [V_t, d] = {needs}, "
            "as affinity and small head have them: the drafter with its full head, before any "
            "apply_head"
        )


# The files.


def _write_head(path: Path, drafter: PrunedDrafter) -> None:
    tensors = {"weight": drafter.weight, "kept": drafter.vocabulary.draft_ids}
    if drafter.bias is not None:
        tensors["bias"] = drafter.bias
    metadata = {
        "format": _FORMATS[HEAD],
        "format_version": str(_VERSION),
        "target_size": str(drafter.vocabulary.target_size),
    }
    content = {name: part.detach().cpu().contiguous() for name, part in tensors.items()}
    path.write_bytes(to_bytes(content, metadata))


def _read_head(path: Path, target_size: int) -> tuple[Vocabulary, Tensor, Tensor | None]:
    import safetensors

    try:
        with torch.device("cpu"), safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _refuse_other_format(path, metadata.get("format"), metadata.get("format_version"))
            names = set(file.keys())
            if names - {"bias"} != {"weight", "kept"}:
                raise SavedDrafterError(
                    f"load_drafter: {path} holds {sorted(names)}; needs weight, kept and, for a "
                    "head that has one, bias"
                )
            tensors = {name: file.get_tensor(name) for name in names}
    except safetensors.SafetensorError as error:
        raise SavedDrafterError(
            f"load_drafter: {path} is not a complete safetensors file ({error}); save the drafter "
            "again"
        ) from error
    if metadata.get("target_size") != str(target_size):
        raise SavedDrafterError(
            f"load_drafter: {path} is for {metadata.get('target_size')} target tokens, "
            f"{path.with_name(AFFINITY)} for {target_size}; needs two files of one drafter"
        )
    try:
        vocabulary = Vocabulary(tensors["kept"], target_size)
    except ValueError as error:
        raise SavedDrafterError(f"load_drafter: {path}: {error}") from error
    return vocabulary, tensors["weight"], tensors.get("bias")


def _settings_as_json(settings: Mapping[str, Any]) -> str:
    content = {
        "format": _FORMATS[SETTINGS],
        "format_version": str(_VERSION),
        "settings": dict(settings),
    }
    try:
        return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise SavedDrafterError(
            f"save_drafter: settings cannot be JSON ({error}); needs text, finite numbers, None, "
            "and lists and dictionaries of them"
        ) from error


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SavedDrafterError(
            f"load_drafter: {path} is not JSON ({error}); save the drafter again"
        ) from error
    content = content if isinstance(content, dict) else {}
    _refuse_other_format(path, content.get("format"), content.get("format_version"))
    settings = content.get("settings")
    if not isinstance(settings, dict):
        raise SavedDrafterError(f"load_drafter: {path} has no settings; save the drafter again")
    return settings


def _refuse_other_format(path: Path, format: object, version: object) -> None:
    needs = _FORMATS[path.name]
    if format != needs:
        raise SavedDrafterError(
            f"load_drafter: {path} is of format {format!r}; needs {needs!r}, as a saved drafter "
            "has it"
        )
    if version != str(_VERSION):
        raise SavedDrafterError(
            f"load_drafter: {path} has format version {version!r}; this rdk_cuda reads version "
            f"{_VERSION} (a higher number needs a newer rdk_cuda)"
        )


def _load_model(directory: Path) -> Any:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise ImportError(
            "load_drafter needs transformers: pip install --no-build-isolation '.[demo]'"
        ) from error
    if not (directory / "config.json").is_file():
        raise SavedDrafterError(
            f"load_drafter: {directory} has no config.json; needs the model that was saved there"
        )
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
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise SavedDrafterError(
            f"load_drafter: {directory} lacks {len(missing)} weights of a {type(model).__name__}, "
            f"as {missing[0]}; needs a whole causal language model"
        )
    return model.eval()
