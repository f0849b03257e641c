"""EAGLE-3 checkpoints as they are published, read without running anything that is in them.

Two formats are in use, and both are read:

- SafeAILab/EAGLE and sgl-project/SpecForge: `config.json` of a Llama with `draft_vocab_size`, and
  weights `midlayer.*` (EAGLE: `eagle/model/cnets.py`).
- vllm-project/speculators: `config.json` with `speculators_model_type: eagle3` and the sizes of the
  layers under `transformer_layer_config`, weights `layers.0.*` (`speculators/models/eagle3`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
from ..token_maps.files import load_torch
from .network import Eagle3Config, Eagle3Network

__all__ = ["CheckpointError", "Eagle3Checkpoint", "is_checkpoint", "read_checkpoint"]

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
# Tensors of training, and tables that are computed: not the drafter's weights.
_NOT_WEIGHTS = (
    "d2t",
    "t2d",
    "rotary_emb.inv_freq",
    "verifier_norm.weight",
    "verifier_lm_head.weight",
)


class CheckpointError(ValueError):
    """A directory without an EAGLE-3 drafter for this target. Names the file or field."""


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
        fields = {
            **json.loads(config.layer.to_json_string()),
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": config.draft_size,
            "target_hidden_size": config.target_hidden_size,
            **{flag: True for flag in _FLAGS if getattr(config, flag)},
        }
        if config.state_layers is not None:
            fields["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": list(config.state_layers)}
        tensors = {
            name.replace("layers.0.", "midlayer."): tensor.cpu().to(self.dtype).contiguous()
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

        write_whole(folder / _WHOLE[0], partial(save_file, tensors))
        write_json(fields, folder / "config.json")


def is_checkpoint(path: str | PathLike[str]) -> bool:
    """Whether a directory's `config.json` is of a drafter on a target's states."""
    try:
        fields = _read_config(Path(path))
    except (CheckpointError, OSError):
        return False
    named = str(fields.get("architectures"))
    own = {"speculators_model_type", "draft_vocab_size"} & fields.keys()
    return bool(own) or "Eagle3" in named


def read_checkpoint(path: str | PathLike[str], target: Any) -> Eagle3Checkpoint:
    """An EAGLE-3 drafter in the format of EAGLE, SpecForge or speculators.

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
    config = _config(folder, fields, target)
    tensors = _read_tensors(folder)
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


def _config(folder: Path, fields: Mapping[str, Any], target: Any) -> Eagle3Config:
    """The configuration, from either format; what is not supported is refused by its field."""
    name = f"{folder / 'config.json'}"
    layer, text = _layer_fields(name, fields, target), target.config.get_text_config()
    nested = _object(name, fields, "eagle_config") if "eagle_config" in fields else {}
    found = {**nested, **{field: value for field, value in fields.items() if value is not None}}
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
            raise CheckpointError(
                f"{folder}: {name} has no place in an EAGLE-3 drafter of this config"
            )
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


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors by the names that `Eagle3Network` has for them."""
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        for name, tensor in _tensors_of(file).items():
            own = name.removeprefix("model.")
            own = "layers.0." + own[len("midlayer.") :] if own.startswith("midlayer.") else own
            if own in tensors:
                raise CheckpointError(f"{file}: has a second {own}")
            tensors[own] = tensor
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    for name in _WHOLE:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                names = sorted(
                    {str(v) for v in json.loads(index.read_bytes())["weight_map"].values()}
                )
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise CheckpointError(
                    f"{index}: is no index of a checkpoint ({error!r})"
                ) from error
            here = {entry.name for entry in folder.iterdir() if entry.is_file()}
            if absent := [name for name in names if name not in here]:
                raise CheckpointError(f"{index}: names {absent[0]!r}, which is not next to it")
            return [folder / name for name in names]
    raise CheckpointError(f"{folder}: holds neither {' nor '.join(_WHOLE)}, whole or in shards")


def _tensors_of(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(file))
        loaded = load_torch(file)
    except OSError:
        raise
    except Exception as error:  # whatever damage, or a pickle that asks for code, leads to
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file}: is no file of plain tensors ({reason:.200})") from error
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise CheckpointError(f"{file}: holds more than named tensors; needs a state_dict")
    return {str(name): tensor for name, tensor in loaded.items()}
