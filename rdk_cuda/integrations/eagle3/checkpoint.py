"""EAGLE checkpoints as they are published, read without running anything that is in them.

Of EAGLE-3 two formats are in use, and both are read:

- SafeAILab/EAGLE and sgl-project/SpecForge: `config.json` of a Llama with `draft_vocab_size`, and
  weights `midlayer.*` (EAGLE: `eagle/model/cnets.py`).
- vllm-project/speculators: `config.json` with `speculators_model_type: eagle3` and the sizes of the
  layers under `transformer_layer_config`, weights `layers.0.*` (`speculators/models/eagle3`).

EAGLE and EAGLE-2 have one: `config.json` of a Llama, with `bias: false` if `fc` has none, and
weights `fc.*` and `layers.*` (EAGLE: `eagle/model/cnets1.py`, and `EaModel` of `ea_model.py`). The
head is the target's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...files import write_json, write_whole
from ...vocabulary import Vocabulary
from ..huggingface.placement import weight_of
from ..token_maps import TokenMapError, from_d2t
from .network import Eagle3Config, Eagle3Network
from .weights import WEIGHTS, CheckpointError, read_tensors, tensor_names

__all__ = ["CheckpointError", "Eagle3Checkpoint", "is_checkpoint", "read_checkpoint"]

_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_FC, _STATE_NORM = "fc.weight", "layers.0.hidden_norm.weight"  # the latter is EAGLE-3's alone
# Tensors of training, and tables that are computed: not the drafter's weights.
_NOT_WEIGHTS = (
    "d2t",
    "t2d",
    "rotary_emb.inv_freq",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)


@dataclass(frozen=True)
class Eagle3Checkpoint:
    """What `read_checkpoint` returns.

    Attributes:
        network: in evaluation mode, in the target's dtype and on its device.
        vocabulary: which target token each row of its head stands for.
        dtype: of the weights in the files.
        shared: names of the weights that are the target's own, whether or not the files have them.
    """

    network: Eagle3Network
    vocabulary: Vocabulary
    dtype: torch.dtype = torch.float16
    shared: frozenset[str] = frozenset([_EMBEDDING])

    @property
    def head_shape(self) -> tuple[int, int]:
        """V_t and d, of a head with all of the target's tokens."""
        return self.vocabulary.target_size, self.network.config.layer.hidden_size

    def full_head(self, target: Any) -> Tensor | None:
        """`[V_t, d]`, a row for every target token in their order; None if there are not so many.

        There are where the head has all tokens, and where its rows are the target's own.
        """
        if _HEAD in self.shared:
            return weight_of(target.get_output_embeddings())
        own = self.network.lm_head.weight.detach()
        ids = self.vocabulary.draft_ids.to(own.device)
        if len(self.vocabulary.kept) < self.vocabulary.target_size:
            return None
        return torch.empty_like(own).index_copy_(0, ids, own)

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the checkpoint in EAGLE's format, without the weights that are the target's."""
        folder, config = Path(folder), self.network.config
        fields = json.loads(config.layer.to_json_string())
        if config.eagle2:
            fields |= {"architectures": ["LlamaForCausalLMEagle"], "bias": config.fc_bias}
        else:
            fields |= {
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": config.draft_size,
                "target_hidden_size": config.target_hidden_size,
                **{flag: True for flag in _FLAGS if getattr(config, flag)},
            }
        if config.state_layers is not None:
            fields["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(config.state_layers)}
        first = "layers.0." if config.eagle2 else "midlayer."
        tensors = {
            name.replace("layers.0.", first): tensor.cpu().to(self.dtype).contiguous()
            for name, tensor in self.network.state_dict().items()
            if name not in self.shared and not name.endswith(_NOT_WEIGHTS)
        }
        ids, size = self.vocabulary.draft_ids, self.vocabulary.target_size
        every = torch.arange(size, device=ids.device)
        if not torch.equal(ids, every):
            tensors["d2t"] = ids - every[: len(ids)]
            tensors["t2d"] = torch.zeros_like(every, dtype=torch.bool)
            tensors["t2d"][ids] = True
        folder.mkdir(parents=True, exist_ok=True)
        from safetensors.torch import save_file

        write_whole(folder / WEIGHTS, partial(save_file, tensors))
        write_json(fields, folder / "config.json")


def is_checkpoint(path: str | PathLike[str]) -> bool:
    """Whether a directory holds a drafter on a target's states, by its files' own names."""
    try:
        fields = _read_config(Path(path))
        return _says_eagle3(fields) or _FC in tensor_names(Path(path))
    except (CheckpointError, OSError):
        return False


def read_checkpoint(path: str | PathLike[str], target: Any) -> Eagle3Checkpoint:
    """An EAGLE-3 drafter in the format of EAGLE, SpecForge or speculators; EAGLE and EAGLE-2, too.

    Nothing is downloaded, and nothing that the files hold is run.

    Args:
        path: the directory with `config.json` and the weights, whole or in shards.
        target: the model that it drafts for, from `AutoModelForCausalLM`. Its embeddings are used
            where the checkpoint has none, and so are its rows of the head.

    Raises:
        CheckpointError: no such drafter, a feature that is not supported, or sizes that do not fit
            the target. Names the field or tensor.
        OSError: a file cannot be opened.
    """
    folder = Path(path)
    fields = _read_config(folder)
    tensors = read_tensors(folder)
    config = _config(folder, fields, tensors, target)
    vocabulary = _vocabulary(folder, tensors, config)
    network = Eagle3Network(config)
    dtypes = {each.dtype for name, each in tensors.items() if not name.endswith(_NOT_WEIGHTS)}
    shared = _fill(network, folder, tensors, vocabulary, target)
    embedding = target.get_input_embeddings().weight
    return Eagle3Checkpoint(
        network.to(embedding.device, embedding.dtype).eval(),
        vocabulary,
        dtypes.pop() if len(dtypes) == 1 else torch.float32,
        shared,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        fields = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: has no config.json; needs the directory of a drafter's checkpoint"
        ) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is no JSON ({error}); copy it anew") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: holds a {type(fields).__name__}; needs an object")
    return fields


def _says_eagle3(fields: Mapping[str, Any]) -> bool:
    own = {"speculators_model_type", "draft_vocab_size"} & fields.keys()
    return bool(own) or "Eagle3" in str(fields.get("architectures"))


def _config(
    folder: Path, fields: Mapping[str, Any], names: Container[str], target: Any
) -> Eagle3Config:
    """The configuration, from any format; what is not supported is refused by its field."""
    name = f"{folder / 'config.json'}"
    layer, text = _layer_fields(name, fields, target), target.config.get_text_config()
    nested = _object(name, fields, "eagle_config") if "eagle_config" in fields else {}
    found = {**nested, **{field: value for field, value in fields.items() if value is not None}}
    if not _says_eagle3(fields) and _STATE_NORM not in names:
        return _eagle2_config(name, found, layer, text.hidden_size)
    config = Eagle3Config(
        _layer_config(name, layer),
        draft_size=_positive(name, found, "draft_vocab_size", layer["vocab_size"]),
        target_hidden_size=_positive(name, found, "target_hidden_size", text.hidden_size),
        state_layers=_layer_ids(name, found.get("eagle_aux_hidden_state_layer_ids")),
        **{flag: bool(found.get(flag)) for flag in _FLAGS},
    )
    if config.target_hidden_size != text.hidden_size:
        raise CheckpointError(
            f"{name}: target_hidden_size is {config.target_hidden_size}, and the target's states "
            f"have {text.hidden_size}; needs the target that the drafter was trained for"
        )
    try:
        config.layers_read(text.num_hidden_layers)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}") from error
    return config


def _eagle2_config(
    name: str, found: Mapping[str, Any], layer: Mapping[str, Any], width: int
) -> Eagle3Config:
    """Of EAGLE and EAGLE-2, for a target whose states are so wide."""
    for field in (*_FLAGS, "eagle_aux_hidden_state_layer_ids"):
        if found.get(field):
            raise CheckpointError(f"{name}: {field} is EAGLE-3's; needs a checkpoint of one kind")
    if layer["hidden_size"] != width:
        raise CheckpointError(
            f"{name}: hidden_size is {layer['hidden_size']}, and the target's states have {width}; "
            "needs the target that the drafter was trained for"
        )
    bias = found.get("bias", True)
    if type(bias) is not bool:
        raise CheckpointError(f"{name}: bias is {bias!r:.40}; needs true or false")
    return Eagle3Config(
        _layer_config(name, layer), layer["vocab_size"], width, eagle2=True, fc_bias=bias
    )


def _layer_fields(name: str, fields: Mapping[str, Any], target: Any) -> Mapping[str, Any]:
    """The part of the configuration that describes the decoder layers."""
    kind, layer = fields.get("speculators_model_type"), fields
    if kind is not None:
        if kind != "eagle3":
            raise CheckpointError(f"{name}: speculators_model_type is {kind!r}; needs 'eagle3'")
        layer = _object(name, fields, "transformer_layer_config")
    if fields.get("quantization_config") or layer.get("quantization_config"):
        raise CheckpointError(f"{name}: has a quantization_config; needs a drafter that has none")
    if layer.get("use_sliding_window") or "sliding_attention" in (layer.get("layer_types") or ()):
        raise CheckpointError(f"{name}: has sliding windows; needs full attention")
    for field in ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"):
        _positive(name, layer, field, None)
    target_size = target.get_output_embeddings().weight.shape[0]
    if layer["vocab_size"] != target_size:
        raise CheckpointError(
            f"{name}: vocab_size is {layer['vocab_size']}, and the target predicts {target_size} "
            "tokens; needs the target that the drafter was trained for"
        )
    return layer


def _layer_config(name: str, fields: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    kinds: dict[Any, Callable[..., Any]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    kind = fields.get("model_type")
    if kind not in kinds:
        raise CheckpointError(f"{name}: model_type is {kind!r}; needs 'llama' or 'qwen3'")
    ours = {k: v for k, v in fields.items() if k not in ("architectures", "auto_map")}
    try:
        config = kinds[kind](**ours)
    except Exception as error:  # whatever Transformers makes of values that do not fit
        raise CheckpointError(f"{name}: Transformers refuses it: {error}") from error
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if (kind := rope.get("rope_type", rope.get("type"))) in ("dynamic", "longrope"):
        raise CheckpointError(
            f"{name}: rope_type is {kind!r}, where positions depend on the batch's longest "
            "sequence; needs another"
        )
    return config


def _object(name: str, fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = fields.get(field)
    if not isinstance(value, dict):
        raise CheckpointError(f"{name}: {field} is {value!r:.40}; needs an object")
    return value


def _positive(name: str, fields: Mapping[str, Any], field: str, default: int | None) -> int:
    value = fields.get(field)
    value = default if value is None else value
    if type(value) is not int or value < 1:
        raise CheckpointError(f"{name}: {field} is {value!r:.40}; needs a positive integer")
    return value


def _layer_ids(name: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(type(each) is not int for each in value):
        raise CheckpointError(
            f"{name}: eagle_aux_hidden_state_layer_ids is {value!r:.40}; needs a list of layers"
        )
    return tuple(value)


def _vocabulary(folder: Path, tensors: Mapping[str, Tensor], config: Eagle3Config) -> Vocabulary:
    size = config.layer.vocab_size
    if "d2t" not in tensors:
        if config.draft_size != size:
            raise CheckpointError(
                f"{folder}: draft_vocab_size is {config.draft_size} of {size} tokens, but there is "
                "no d2t that says which"
            )
        return Vocabulary.identity(size)
    try:
        vocabulary = from_d2t(tensors["d2t"], size, t2d=tensors.get("t2d"))
    except TokenMapError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    if len(vocabulary.draft_ids) != config.draft_size:
        raise CheckpointError(
            f"{folder}: d2t has {len(vocabulary.draft_ids)} tokens; needs draft_vocab_size = "
            f"{config.draft_size}"
        )
    return vocabulary


def _fill(
    network: Eagle3Network,
    folder: Path,
    tensors: Mapping[str, Tensor],
    vocabulary: Vocabulary,
    target: Any,
) -> frozenset[str]:
    """Give the network its weights; the names of those that are the target's own."""
    head = weight_of(target.get_output_embeddings())
    own = {
        _EMBEDDING: target.get_input_embeddings().weight.detach(),
        _HEAD: head[vocabulary.draft_ids.to(head.device)],
    }
    weights = {
        **own,
        **{name: tensor for name, tensor in tensors.items() if not name.endswith(_NOT_WEIGHTS)},
    }
    wanted = network.state_dict()
    for name, tensor in weights.items():
        if name not in wanted:
            raise CheckpointError(f"{folder}: {name} has no place in a drafter of this config")
        if tensor.shape != wanted[name].shape or not tensor.is_floating_point():
            raise CheckpointError(
                f"{folder}: {name} has shape {list(tensor.shape)} and dtype {tensor.dtype}; needs "
                f"{list(wanted[name].shape)}"
            )
    if missing := sorted(wanted.keys() - weights.keys()):
        raise CheckpointError(f"{folder}: has no {' and no '.join(missing[:3])}")
    network.load_state_dict(weights)
    return frozenset(
        name for name, row in own.items() if torch.equal(row.to(weights[name]), weights[name])
    )
