"""Multi-token heads, read by name from the files of the target that they belong to.

Transformers drops these tensors when it loads most targets. Its conversions of a target's layers,
such as experts into one tensor, are run on them here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from ...files import FLOATS, opened_tensors
from ..eagle3.checkpoint import refuse_misfits
from ..eagle3.weights import CheckpointError
from ..huggingface.library import unwrapped
from ..huggingface.placement import weight_of
from ..huggingface.states import last_norm
from ..token_maps.files import TokenMapError, checkpoint_files
from .families import COPIES, FAMILIES, Family, family_of
from .network import MtpNetwork, layer_config

_PARTS = ("embedding_norm", "state_norm", "map", "norm")


def read_mtp(directory: str | PathLike[str], target: Any) -> MtpNetwork:
    """The multi-token head among a target's files: safetensors, whole or in shards.

    Nothing is downloaded, and nothing in the files is run.

    Args:
        directory: of the target's own files.
        target: from them, by `AutoModelForCausalLM`.

    Returns:
        The network of its first layer, in the target's dtype and on the device of its embeddings.

    Raises:
        CheckpointError: a family that is not known; tensors that are missing, quantised or of
            other shapes than the target's configuration has. Names them.
        OSError: a file cannot be opened.
    """
    return read_layer(Path(directory), target, 0)


def read_layer(folder: Path, target: Any, number: int) -> MtpNetwork:
    """The network of one of a head's layers."""
    target = unwrapped(target)
    text = target.config.get_text_config(decoder=True)
    family = family_of(text.model_type)
    if family is None:
        known = ", ".join(model for each in FAMILIES.values() for model in each.models)
        raise CheckpointError(
            f"{folder}: the target is of type {text.model_type!r}, whose multi-token head is not "
            f"known; needs one of {known}"
        )
    names = names_of(family, text.num_hidden_layers, text, number)
    tensors = _placed(folder, family, names, _tensors(folder, family, names))
    return _network(folder, family, target, number, tensors)


def published(network: MtpNetwork) -> dict[str, Tensor]:
    """The tensors of a head's first layer by names that `read_mtp` reads; none of the target's."""
    family = network.family
    names = names_of(family, network.target_layers, network.decoder.config, 0)
    parts = {"embedding_norm": network.embedding_norm, "state_norm": network.state_norm}
    parts |= {"map": network.fc, "norm": network.norm}
    tensors = {f"{names[part]}.weight": parts[part].weight for part in parts if part in names}
    if network.own_head:
        tensors[f"{names['head']}.weight"] = network.lm_head.weight
    begin = _begin(family)
    return tensors | {
        names["layer"] + name[len(begin) :]: tensor
        for name, tensor in network.decoder.state_dict().items()
        if name.startswith(begin)
    }


def _begin(family: Family) -> str:
    """Name the beginning of all names in a decoder that is a head's layer."""
    return "layers." if family.blocks else "layers.0."


def names_of(family: Family, layers: int, text: Any, number: int) -> dict[str, str]:
    """Name the beginnings of one layer's parts; `layer` is the decoder layer itself."""
    numbers = {"k": number, "after": layers + number, "last": _blocks(text) - 1}
    own = {part: getattr(family, part).format(**numbers) for part in (*_PARTS, "head", "layer")}
    return {part: name for part, name in own.items() if name}


def _blocks(text: Any) -> int:
    return len(getattr(text, "mtp_layers_block_type", None) or [0])


def _tensors(folder: Path, family: Family, names: Mapping[str, str]) -> dict[str, Tensor]:
    """All that a layer may have, by names without what wraps the text model."""
    from safetensors import SafetensorError

    beginnings = tuple(names.values())

    def wanted(published: str) -> bool:
        name = family.own_name(published)
        return name.startswith(beginnings) and not COPIES.search(name)

    tensors: dict[str, Tensor] = {}
    try:
        for file in checkpoint_files(folder, wanted):
            if file.suffix != ".safetensors":
                raise CheckpointError(f"{file}: may be a pickle; needs the target's safetensors")
            with opened_tensors(file) as content:
                for name in filter(wanted, content.keys()):
                    if (own := family.own_name(name)) in tensors:
                        raise CheckpointError(f"{file}: has a second {own}")
                    tensors[own] = content.get_tensor(name)
    except TokenMapError as error:
        raise CheckpointError(str(error)) from error
    except SafetensorError as error:
        raise CheckpointError(f"{folder}: has no complete safetensors file ({error})") from error
    packed = [name for name, each in tensors.items() if each.dtype not in FLOATS]
    packed += [name for name in tensors if "weight_scale" in name or "weight_packed" in name]
    if packed := sorted({*packed}):
        raise CheckpointError(
            f"{folder}: of its multi-token head {len(packed)} tensors are quantised, as "
            f"{', '.join(packed[:3])}; needs them in a floating dtype"
        )
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{folder}: {name} has NaN or inf; needs finite weights")
    return tensors


def _placed(
    folder: Path, family: Family, names: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The same by the part, or the name in a decoder of one layer."""
    first = names["layer"]
    parts = {f"{name}.weight": part for part, name in names.items() if part != "layer"}
    own = {part: tensors[name] for name, part in parts.items() if name in tensors}
    inside = [name for name in tensors if name.startswith(first) and name not in parts]
    missing = [name for name, part in parts.items() if part not in own and part != "head"]
    missing += [] if inside else [f"{first}*"]
    if missing:
        raise CheckpointError(
            f"{folder}: of the multi-token head it lacks {', '.join(missing)}, as copies that "
            "others upload do; needs the files of the first release"
        )
    if left := sorted(tensors.keys() - {*inside, *parts}):
        raise CheckpointError(
            f"{folder}: in its multi-token head {left[0]} has no place; needs maps and norms "
            "without a bias"
        )
    return own | {_begin(family) + name[len(first) :]: tensors[name] for name in inside}


def _network(
    folder: Path, family: Family, target: Any, number: int, tensors: dict[str, Tensor]
) -> MtpNetwork:
    """The network of one layer."""
    dtypes = {each.dtype for each in tensors.values()}
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
                trust_remote_code=False,
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
    targets = weight_of(target.get_output_embeddings())
    width = targets.shape[1]
    sizes = {"embedding_norm": (width,), "state_norm": (width,), "map": (width, 2 * width)}
    wanted = {part: torch.Size(sizes.get(part, targets.shape)) for part in parts}
    refuse_misfits(folder, parts, wanted)
    head = parts.get("head")
    own = None if head is None or torch.equal(head.to(targets), targets) else head  # not a copy
    network = MtpNetwork(layer, target, family, head=own)
    network.stored = dtypes.pop() if len(dtypes) == 1 else torch.float32
    network.embedding_norm.weight.copy_(parts["embedding_norm"])
    network.state_norm.weight.copy_(parts["state_norm"])
    network.fc.weight.copy_(parts["map"])
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
