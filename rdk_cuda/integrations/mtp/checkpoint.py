"""Multi-token heads, read by name from the files of the target that they belong to.

Transformers drops these tensors when it loads most targets. Its conversions of a target's layers,
such as experts into one tensor, are run on them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.utils import logging

from ...files import opened_tensors
from ..eagle3.weights import CheckpointError
from ..huggingface.library import unwrapped
from ..huggingface.placement import weight_of
from ..huggingface.states import last_norm
from ..token_maps.files import TokenMapError, checkpoint_files
from .families import COPIES, FAMILIES, Family, family_of
from .network import MtpNetwork, layer_config

_MOST_LAYERS = 16
_PLAIN = ("F64", "F32", "F16", "BF16")
_PARTS = ("embedding_norm", "state_norm", "map", "norm")


class _Place(NamedTuple):
    """Where a tensor is: a file, its name there, and its dtype."""

    file: Path
    name: str
    dtype: str


def read_mtp(directory: str | PathLike[str], target: Any) -> MtpNetwork:
    """The multi-token head among a target's files: safetensors, whole or in shards.

    Nothing is downloaded, and nothing in the files is run.

    Args:
        directory: of the target's own files.
        target: from them, by `AutoModelForCausalLM`.

    Returns:
        The network of its first layer, with those of the others as `further`, in the target's
        dtype and on the device of its embeddings.

    Raises:
        CheckpointError: a family that is not known; tensors that are missing, quantised or of
            other shapes than the target's configuration has. Names them.
        OSError: a file cannot be opened.
    """
    folder, target = Path(directory), unwrapped(target)
    text = target.config.get_text_config(decoder=True)
    family = family_of(text.model_type)
    if family is None:
        known = ", ".join(model for each in FAMILIES.values() for model in each.models)
        raise CheckpointError(
            f"{folder}: the target is of type {text.model_type!r}, whose multi-token head is not "
            f"known; needs one of {known}"
        )
    places = _places(folder, family, text)
    layers = []
    for number, names in enumerate(_layers(folder, family, text, places)):
        tensors = dict(_read({own: places[name] for own, name in names.items()}))
        layers.append(_network(folder, family, target, number, tensors))
    layers[0].further = layers[1:]
    return layers[0]


def _names(family: Family, text: Any, number: int) -> dict[str, str]:
    """What the names of one layer's parts begin with; `layer` is the decoder layer itself."""
    numbers = {"k": number, "after": text.num_hidden_layers + number, "last": _blocks(text) - 1}
    own = {part: getattr(family, part).format(**numbers) for part in (*_PARTS, "head", "layer")}
    return {part: name for part, name in own.items() if name}


def _blocks(text: Any) -> int:
    return len(getattr(text, "mtp_layers_block_type", None) or [0])


def _places(folder: Path, family: Family, text: Any) -> dict[str, _Place]:
    """Of each tensor that a head may have, by its name without what wraps the text model."""
    numbers = range(1 if family.blocks else _MOST_LAYERS)
    names = [name for n in numbers for name in _names(family, text, n).values()]

    def wanted(published: str) -> bool:
        return family.own_name(published).startswith(tuple(names))

    places: dict[str, _Place] = {}
    try:
        files = checkpoint_files(folder, wanted)
    except TokenMapError as error:
        raise CheckpointError(str(error)) from error
    for file in files:
        if file.suffix != ".safetensors":
            raise CheckpointError(f"{file}: may be a pickle; needs the target's safetensors files")
        from safetensors import SafetensorError

        try:
            with opened_tensors(file) as content:
                for name in filter(wanted, content.keys()):
                    dtype = content.get_slice(name).get_dtype()
                    places[family.own_name(name)] = _Place(file, name, dtype)
        except SafetensorError as error:
            raise CheckpointError(f"{file}: is no complete safetensors file ({error})") from error
    packed = [name for name, own in places.items() if own.dtype not in _PLAIN]
    packed += [name for name in places if "weight_scale" in name or "weight_packed" in name]
    if packed := sorted({name for name in packed if not COPIES.search(name)}):
        raise CheckpointError(
            f"{folder}: of its multi-token head {len(packed)} tensors are quantised, as "
            f"{', '.join(packed[:3])}; needs them in a floating dtype"
        )
    return places


def _layers(
    folder: Path, family: Family, text: Any, places: Mapping[str, _Place]
) -> list[dict[str, str]]:
    """Of each layer its tensors: by the part, or the name in a decoder of one layer."""
    layers: list[dict[str, str]] = []
    for number in range(1 if family.blocks else _MOST_LAYERS):
        names = _names(family, text, number)
        first = names.pop("layer")
        parts = {f"{name}.weight": part for part, name in names.items()}
        own = {part: name for name, part in parts.items() if name in places}
        inside = [name for name in places if name.startswith(first) and name not in parts]
        inside = [name for name in inside if not COPIES.search(name)]
        if layers and not inside:
            break
        missing = [name for name, part in parts.items() if part not in own and part != "head"]
        missing += [] if inside else [f"{first}*"]
        if missing:
            raise CheckpointError(
                f"{folder}: of the multi-token head it lacks {', '.join(missing)}, as copies that "
                "others upload do; needs the files of the first release"
            )
        begin = "layers." if family.blocks else "layers.0."
        layers.append(own | {begin + name[len(first) :]: name for name in inside})
    return layers


def _read(places: Mapping[str, _Place]) -> Iterator[tuple[str, Tensor]]:
    for file in {place.file for place in places.values()}:
        with opened_tensors(file) as content:
            for own, place in places.items():
                if place.file == file:
                    yield own, content.get_tensor(place.name)


def _network(
    folder: Path, family: Family, target: Any, number: int, tensors: dict[str, Tensor]
) -> MtpNetwork:
    """The network of one layer."""
    parts = {part: tensors.pop(part) for part in (*_PARTS, "head") if part in tensors}
    decoder = target.get_decoder()
    norm = f"{last_norm(decoder)}.weight"
    if "norm" in parts:
        tensors[norm] = parts.pop("norm")
    try:
        with _quiet():
            layer, report = type(decoder).from_pretrained(
                None,
                config=layer_config(target, family, number),
                state_dict=tensors,
                dtype=target.get_input_embeddings().weight.dtype,
                output_loading_info=True,
            )
    except Exception as error:  # whatever Transformers makes of shapes that do not fit
        raise CheckpointError(
            f"{folder}: of the tensors of its multi-token head no layer of "
            f"{type(decoder).__name__} can be made: {str(error).strip():.300}"
        ) from error
    absent = {name for name in report["missing_keys"] if not name.startswith("embed")}
    absent -= set() if family.norm else {norm}
    if absent or report["unexpected_keys"]:
        raise CheckpointError(
            f"{folder}: the layer of its multi-token head lacks {sorted(absent)[:3]} and has "
            f"{sorted(report['unexpected_keys'])[:3]} besides; needs those of a layer of "
            f"{type(decoder).__name__}"
        )
    network = MtpNetwork(layer, target, family, head=parts.get("head"))
    targets = weight_of(target.get_output_embeddings())
    own = {
        "embedding_norm": network.embedding_norm.weight,
        "state_norm": network.state_norm.weight,
        "map": network.fc.weight,
        "head": targets,
    }
    for part, weight in parts.items():
        if weight.shape != own[part].shape:
            raise CheckpointError(
                f"{folder}: {part.replace('_', ' ')} of its multi-token head has shape "
                f"{list(weight.shape)}; needs {list(own[part].shape)}"
            )
        if part != "head":
            own[part].copy_(weight)
        elif torch.equal(network.lm_head.weight, targets):  # a copy
            network.share_head(target)
    return network


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a bar, and a report of embeddings that are absent on purpose."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
