"""Block drafters as they are published, read without running anything that is in the files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import FLOATS
from ...vocabulary import Vocabulary
from ..eagle3.configuration import layer_config, layer_fields, layer_ids, positive, read_fields
from ..eagle3.weights import CheckpointError, read_tensors, weight_files
from ..huggingface.placement import weight_of
from ..token_maps import TokenMapError, from_d2t
from .network import BlockConfig, BlockNetwork

_KINDS = ("dflash", "dspark")
_MOST_PLACES = 1 << 12
# Names that are in use, and what they are here.
_NAMES = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "markov_head.markov_w1.": "markov.",
    "markov_head.markov_w2.": "bias.",
    "confidence_head.proj.": "confidence.",
}
_EMBEDDING, _HEAD, _BIAS, _MASK = (
    "embed_tokens.weight",
    "lm_head.weight",
    "bias.weight",
    "mask_embedding",
)
_OPTIONAL = (_EMBEDDING, _HEAD, _MASK)


def read_block_drafter(path: str | PathLike[str], target: Any) -> BlockNetwork:
    """A DFlash or DSpark drafter of Qwen3's layers, from safetensors files.

    Nothing is downloaded, and nothing in the files is run.

    Args:
        path: the directory with `config.json` and the weights, whole or in shards.
        target: the model that it drafts for, from `AutoModelForCausalLM`. Its embeddings are used
            where the checkpoint has none, and so are its rows of the head.

    Returns:
        In evaluation mode, in the target's dtype and on its device.

    Raises:
        CheckpointError: no such drafter, a feature that is not supported, or sizes that do not fit
            the target. Names the field or tensor.
        OSError: a file cannot be opened.
    """
    folder = Path(path)
    files = [*weight_files(folder), *folder.glob(f"{_MASK}*")]
    if pickles := [file.name for file in files if file.suffix != ".safetensors"]:
        raise CheckpointError(f"{folder}: {pickles[0]} may be a pickle; needs safetensors files")
    tensors = {_renamed(name): each for name, each in read_tensors(folder).items()}
    maps: dict[str, Tensor] = {
        name: tensors.pop(name) for name in ("d2t", "t2d") if name in tensors
    }
    config = _configuration(folder, read_fields(folder), target)
    _refuse_other(folder, config, tensors)
    network = BlockNetwork(config)
    own = network.state_dict().keys()
    network.load_state_dict({name: tensors[name] for name in own})
    embedding = target.get_input_embeddings()
    network.to(embedding.weight.device, embedding.weight.dtype).eval().requires_grad_(False)
    network.vocabulary = _vocabulary(folder, config, maps)
    network.embedding = _embedding(config, embedding, tensors)
    head = weight_of(target.get_output_embeddings())
    if network.vocabulary.draft_size < len(head):
        head = head[network.vocabulary.draft_ids.to(head.device)]
    if _HEAD in tensors and not torch.equal(tensors[_HEAD].to(head), head):
        head = tensors[_HEAD].to(head)
    if config.markov:
        head = torch.cat([head, tensors[_BIAS].to(head)], dim=1)
    network.head = head
    return network


def _renamed(name: str) -> str:
    for other, own in _NAMES.items():
        if name.startswith(other):
            return own + name[len(other) :]
    return name


def _configuration(folder: Path, fields: Mapping[str, Any], target: Any) -> BlockConfig:
    name = f"{folder / 'config.json'}"
    layer = layer_fields(name, fields, target, _KINDS)
    text, nested = target.config.get_text_config(), fields.get("dflash_config") or {}
    if layer["model_type"] != "qwen3" or not isinstance(nested, dict):
        raise CheckpointError(f"{name}: needs layers of model_type 'qwen3', and no other fields")
    found = {**nested, **{field: value for field, value in fields.items() if value is not None}}
    if found.get("markov_head_type", "vanilla") != "vanilla":
        raise CheckpointError(
            f"{name}: markov_head_type is {found['markov_head_type']!r:.40}; needs 'vanilla'"
        )
    if found.get("causal") or found.get("is_causal") or found.get("use_swa"):
        raise CheckpointError(f"{name}: its layers are causal or slide; needs full attention")
    read = layer_ids(name, found.get("target_layer_ids"))
    aux = layer_ids(name, found.get("aux_hidden_state_layer_ids"))
    state_layers = aux or tuple(at + 1 for at in read or ())
    if not state_layers or not all(0 <= at <= text.num_hidden_layers for at in state_layers):
        raise CheckpointError(
            f"{name}: target_layer_ids is {read}; needs layers of the target's "
            f"{text.num_hidden_layers}"
        )
    rank = found.get("markov_rank") or 0
    confidence = "token" if found.get("confidence_head_with_markov") else "state"
    kind = fields.get("speculators_model_type")
    config = BlockConfig(
        layer_config(name, layer),
        state_layers,
        positive(name, found, "target_hidden_size", text.hidden_size),
        block=positive(name, found, "block_size", None),
        mask=positive(name, found, "mask_token_id", None),
        draft_size=positive(name, found, "draft_vocab_size", layer["vocab_size"]),
        # DSpark's own files do; those of vllm-project/speculators where they say so.
        from_newest=bool(rank) and bool(found.get("sample_from_anchor", kind is None)),
        markov=positive(name, found, "markov_rank", None) if rank else 0,
        confidence=confidence if found.get("enable_confidence_head") else "",
    )
    if config.target_hidden_size != text.hidden_size or config.mask >= layer["vocab_size"]:
        raise CheckpointError(
            f"{name}: target_hidden_size is {config.target_hidden_size} and mask_token_id "
            f"{config.mask}; the target's states have {text.hidden_size}, and it reads "
            f"{layer['vocab_size']} tokens; needs the target that the drafter was trained for"
        )
    if config.places < 1 or config.block > _MOST_PLACES or rank > _MOST_PLACES:
        raise CheckpointError(
            f"{name}: block_size is {config.block} and markov_rank {rank}; needs a block of a "
            f"draft at least, and both at most {_MOST_PLACES}"
        )
    return config


def _refuse_other(folder: Path, config: BlockConfig, tensors: Mapping[str, Tensor]) -> None:
    """Tensors that are missing, of other shapes, or have no place; none is allocated for it."""
    width = config.layer.hidden_size
    with torch.device("meta"):
        wanted = {name: each.shape for name, each in BlockNetwork(config).state_dict().items()}
    wanted |= {
        _EMBEDDING: torch.Size([config.layer.vocab_size, width]),
        _HEAD: torch.Size([config.draft_size, width]),
        _MASK: torch.Size([width]),
    }
    if config.markov:
        wanted[_BIAS] = torch.Size([config.draft_size, config.markov])
    for name, tensor in tensors.items():
        if name not in wanted:
            raise CheckpointError(f"{folder}: {name} has no place in a drafter of this config")
        if tensor.shape != wanted[name] or tensor.dtype not in FLOATS:
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; needs "
                f"{list(wanted[name])}, of {', '.join(map(str, FLOATS))}"
            )
    if missing := sorted(wanted.keys() - tensors.keys() - set(_OPTIONAL)):
        raise CheckpointError(f"{folder}: has no {' and no '.join(missing[:3])}")


def _vocabulary(folder: Path, config: BlockConfig, maps: Mapping[str, Tensor]) -> Vocabulary:
    size = config.layer.vocab_size
    if "d2t" not in maps and config.draft_size == size:
        return Vocabulary.identity(size)
    try:
        vocabulary = from_d2t(maps["d2t"], size, t2d=maps.get("t2d"))
    except (TokenMapError, KeyError) as error:
        raise CheckpointError(
            f"{folder}: draft_vocab_size is {config.draft_size} of {size}, and of its d2t: {error}"
        ) from error
    if vocabulary.draft_size != config.draft_size:
        raise CheckpointError(
            f"{folder}: d2t has {vocabulary.draft_size} tokens; needs {config.draft_size}"
        )
    return vocabulary


def _embedding(config: BlockConfig, targets: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Of tokens and masks: the target's, where the files have no other."""
    weight = targets.weight.detach()
    if _EMBEDDING in tensors and not torch.equal(tensors[_EMBEDDING].to(weight), weight):
        own = tensors[_EMBEDDING].to(weight)
        targets = partial(torch.nn.functional.embedding, weight=own)
    if _MASK not in tensors:
        return targets
    mask = tensors[_MASK].to(weight)
    return lambda tokens: torch.where((tokens == config.mask)[..., None], mask, targets(tokens))
