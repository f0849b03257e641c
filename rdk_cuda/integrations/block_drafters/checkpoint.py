"""Block drafters as they are published, read without running anything that is in the files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...vocabulary import Vocabulary
from ..eagle3.checkpoint import refuse_misfits, shapes_of, vocabulary_of
from ..eagle3.config_json import (
    FLAG,
    SIZE,
    TOKEN,
    checked,
    layer_config,
    layer_fields,
    layer_ids,
    read_fields,
    refuse_layers,
)
from ..eagle3.weights import CheckpointError, read_tensors, weight_files
from ..huggingface.placement import weight_of
from .network import BlockConfig, BlockNetwork

_KINDS = ("dflash", "dspark")
_MOST_PLACES = 1 << 12
# Names that are in use, and what they are here.
_NAMES = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "markov_head.markov_w1.": "markov.",
    "markov_head.markov_w2.": "bias.",
}
CONFIDENCE = "confidence_head."  # which says when drafts may end, and is not needed
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_BIAS, _MASK = "bias.weight", "mask_embedding"


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
    tensors = {
        _renamed(name): each
        for name, each in read_tensors(folder).items()
        if not name.startswith(CONFIDENCE)
    }
    config = _configuration(folder, read_fields(folder), tensors, target)
    vocabulary = vocabulary_of(folder, tensors, config)
    embedding, head = target.get_input_embeddings(), weight_of(target.get_output_embeddings())
    own = {
        _EMBEDDING: embedding.weight.detach(),
        _HEAD: head if vocabulary == Vocabulary.identity(len(head)) else head[vocabulary.draft_ids],
    }
    weights = own | {name: each for name, each in tensors.items() if name not in ("d2t", "t2d")}
    network_weights = shapes_of(folder, BlockNetwork, config)
    width, rows = config.layer.hidden_size, config.draft_size
    others: dict[str, tuple[int, ...]] = {
        _EMBEDDING: (len(own[_EMBEDDING]), width),
        _HEAD: (rows, width),
    }
    others |= {_BIAS: (rows, config.markov)} if config.markov else {}
    others |= {_MASK: (width,)} if _MASK in weights else {}
    sizes = {name: torch.Size(size) for name, size in others.items()}
    refuse_misfits(folder, weights, network_weights | sizes)
    network = BlockNetwork(config)
    network.load_state_dict({name: weights[name] for name in network_weights})
    network.to(embedding.weight.device, embedding.weight.dtype).eval().requires_grad_(False)
    network.vocabulary, network.embedding = vocabulary, _embedding(config, embedding, weights)
    network.head = weights[_HEAD].to(head)
    if torch.equal(network.head, own[_HEAD]):
        network.head = own[_HEAD]  # without a copy
    if config.markov:
        network.head = torch.cat([network.head, weights[_BIAS].to(head)], dim=1)
    return network


def _renamed(name: str) -> str:
    for other, own in _NAMES.items():
        if name.startswith(other):
            return own + name[len(other) :]
    return name


def _configuration(
    folder: Path, fields: Mapping[str, Any], names: Collection[str], target: Any
) -> BlockConfig:
    name = f"{folder / 'config.json'}"
    layer = layer_fields(name, fields, target, _KINDS)
    refuse_layers(name, layer["num_hidden_layers"], names)
    text, inside = target.config.get_text_config(), fields.get("dflash_config")
    nested = inside if isinstance(inside, dict) else {}
    found = {**nested, **{field: value for field, value in fields.items() if value is not None}}
    read = layer_ids(name, found, "target_layer_ids")
    aux = layer_ids(name, found, "aux_hidden_state_layer_ids")
    rank, kind = found.get("markov_rank") or 0, fields.get("speculators_model_type")
    config = BlockConfig(
        layer_config(name, layer),
        aux or tuple(at + 1 for at in read or ()),
        checked(name, found, "target_hidden_size", SIZE, text.hidden_size),
        block=checked(name, found, "block_size"),
        mask=checked(name, found, "mask_token_id", TOKEN),
        draft_size=checked(name, found, "draft_vocab_size", SIZE, layer["vocab_size"]),
        # DSpark's own files do; those of vllm-project/speculators where they say so.
        from_newest=bool(rank) and checked(name, found, "sample_from_anchor", FLAG, kind is None),
        markov=checked(name, found, "markov_rank") if rank else 0,
    )
    depth, tokens, width = text.num_hidden_layers, layer["vocab_size"], text.hidden_size
    own, most, head = layer["model_type"], _MOST_PLACES, found.get("markov_head_type", "vanilla")
    sliding = any(map(found.get, ("causal", "is_causal", "use_swa")))
    states = config.state_layers and all(0 <= at <= depth for at in config.state_layers)
    block = config.places > 0 and max(config.block, config.markov) <= most
    for sound, reason in (
        (own == "qwen3", f"model_type is {own!r}; needs 'qwen3'"),
        (head == "vanilla", f"markov_head_type is {head!r:.40}; needs 'vanilla'"),
        (not sliding, "its layers are causal or slide; needs full attention"),
        (states, f"target_layer_ids is {read}; needs layers of the target's {depth}"),
        (block, f"block_size is {config.block}, markov_rank {rank}; needs drafts, up to {most}"),
        (
            config.target_hidden_size == width,
            f"target_hidden_size is {config.target_hidden_size}, and the target's states have "
            f"{width}; needs the target that the drafter was trained for",
        ),
        (config.mask < tokens, f"mask_token_id is {config.mask}, and the target reads {tokens}"),
    ):
        if not sound:
            raise CheckpointError(f"{name}: {reason}")
    return config


def _embedding(config: BlockConfig, targets: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Of tokens and masks: the target's, where the files have no other."""
    weight = targets.weight.detach()
    if not torch.equal(own := tensors[_EMBEDDING].to(weight), weight):
        targets = partial(torch.nn.functional.embedding, weight=own)
    if _MASK not in tensors:
        return targets
    mask = tensors[_MASK].to(weight)
    return lambda tokens: torch.where((tokens == config.mask)[..., None], mask, targets(tokens))
