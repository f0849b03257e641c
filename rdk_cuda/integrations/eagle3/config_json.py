"""The `config.json` of an EAGLE drafter: each field is checked before anything is made of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...files import read_json
from .network import Eagle3Config
from .weights import CheckpointError

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_STATE_NORM = "layers.0.hidden_norm.weight"  # EAGLE-3's alone


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e300  # no float holds every int


Rule = tuple[Callable[[Any], bool], str]  # the valid values, and these in words
SIZE: Rule = (_is_size, "a positive integer below 2^31")
TOKEN: Rule = (lambda value: value == 0 or _is_size(value), "a token id")
_NUMBER: Rule = (_is_number, "a number")
FLAG: Rule = (lambda value: type(value) is bool, "true or false")
_OBJECT: Rule = (lambda value: isinstance(value, dict), "an object")
_LAYERS: Rule = (
    lambda value: isinstance(value, list) and bool(value) and {*map(type, value)} == {int},
    "a list of layers",
)
_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
_OTHER_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
_REQUIRED = ("model_type", "num_attention_heads", *_SIZES)
# The fields that the layers read. Nothing is made of other fields, such as num_labels.
_LAYER_FIELDS: dict[str, Rule] = {
    "model_type": (lambda value: value in ("llama", "qwen3"), "'llama' or 'qwen3'"),
    "hidden_act": (lambda value: isinstance(value, str), "a name, as 'silu'"),
    "layer_types": (
        lambda value: isinstance(value, list) and all(each == "full_attention" for each in value),
        "a list of full_attention, without sliding windows",
    ),
    "use_sliding_window": (lambda value: value is False, "false: there are no sliding windows"),
    "num_attention_heads": SIZE,
    **dict.fromkeys((*_SIZES, *_OTHER_SIZES), SIZE),
    **dict.fromkeys(("rms_norm_eps", "initializer_range", "attention_dropout"), _NUMBER),
    "rope_theta": _NUMBER,
    **dict.fromkeys(("attention_bias", "mlp_bias", "tie_word_embeddings"), FLAG),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), _OBJECT),
}


def read_fields(folder: Path) -> dict[str, Any]:
    """Read `config.json` in a folder."""
    path = folder / "config.json"
    try:
        fields = read_json(path)
    except FileNotFoundError:
        inside = (folder / "model" / "config.json").is_file()
        needs = "its folder model" if inside else "the directory of a drafter's checkpoint"
        raise CheckpointError(f"{folder}: has no config.json; needs {needs}") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: is no JSON ({error}); copy it anew") from error
    if not isinstance(fields, dict):
        raise CheckpointError(f"{path}: holds a {type(fields).__name__}; needs an object")
    return fields


def says_eagle3(fields: Mapping[str, Any]) -> bool:
    """Say whether a configuration is of EAGLE-3 by its own words."""
    own = {"speculators_model_type", "draft_vocab_size"} & fields.keys()
    return bool(own) or "Eagle3" in str(fields.get("architectures"))


def configuration(
    folder: Path, fields: Mapping[str, Any], names: Collection[str], target: Any
) -> Eagle3Config:
    """Check the configuration, in any format; `names` are those of the tensors."""
    name = f"{folder / 'config.json'}"
    layer, text = layer_fields(name, fields, target), target.config.get_text_config()
    if _STATE_NORM in names and "speculators_model_type" not in fields and _layers(names) == {"0"}:
        layer["num_hidden_layers"] = 1  # EAGLE's `midlayer`; some name the target's number
    refuse_layers(name, layer["num_hidden_layers"], names)
    nested = checked(name, fields, "eagle_config", _OBJECT, {})
    found = {**nested, **{field: value for field, value in fields.items() if value is not None}}
    if not says_eagle3(fields) and _STATE_NORM not in names:
        return _eagle2_config(name, found, layer, text.hidden_size)
    config = Eagle3Config(
        layer_config(name, layer),
        draft_size=checked(name, found, "draft_vocab_size", SIZE, layer["vocab_size"]),
        target_hidden_size=checked(name, found, "target_hidden_size", SIZE, text.hidden_size),
        state_layers=layer_ids(name, found, "eagle_aux_hidden_state_layer_ids"),
        reads_last=found.get("use_aux_hidden_state") is False,
        **{flag: bool(found.get(flag)) for flag in FLAGS},
    )
    if config.target_hidden_size != text.hidden_size:
        raise CheckpointError(
            f"{name}: target_hidden_size is {config.target_hidden_size}, and the target's states "
            f"have {text.hidden_size}; needs the target that the drafter was trained for"
        )
    if config.reads_last and layer["hidden_size"] != text.hidden_size:
        raise CheckpointError(
            f"{name}: use_aux_hidden_state is false, hidden_size is {layer['hidden_size']}, and "
            f"the target's states have {text.hidden_size}; needs states that are read as they are"
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
    for field in (*FLAGS, "eagle_aux_hidden_state_layer_ids"):
        if found.get(field):
            raise CheckpointError(f"{name}: {field} is EAGLE-3's; needs a checkpoint of one kind")
    if layer["hidden_size"] != width:
        raise CheckpointError(
            f"{name}: hidden_size is {layer['hidden_size']}, and the target's states have {width}; "
            "needs the target that the drafter was trained for"
        )
    bias = checked(name, found, "bias", FLAG, True)
    return Eagle3Config(
        layer_config(name, layer), layer["vocab_size"], width, eagle2=True, fc_bias=bias
    )


def layer_fields(
    name: str, fields: Mapping[str, Any], target: Any, kinds: Sequence[str] = ("eagle3",)
) -> dict[str, Any]:
    """The part of the configuration that describes the decoder layers, each field checked."""
    kind, layer = fields.get("speculators_model_type"), fields
    if kind is not None:
        if kind not in kinds:
            needs = " or ".join(map(repr, kinds))
            raise CheckpointError(f"{name}: speculators_model_type is {kind!r:.40}; needs {needs}")
        layer = checked(name, fields, "transformer_layer_config", _OBJECT)
    if fields.get("quantization_config") or layer.get("quantization_config"):
        raise CheckpointError(f"{name}: has a quantization_config; needs a drafter that has none")
    found = {
        field: checked(name, layer, field, rule)
        for field, rule in _LAYER_FIELDS.items()
        if layer.get(field) is not None or field in _REQUIRED
    }
    target_size = target.get_output_embeddings().weight.shape[0]
    if found["vocab_size"] != target_size:
        raise CheckpointError(
            f"{name}: vocab_size is {found['vocab_size']}, and the target predicts {target_size} "
            "tokens; needs the target that the drafter was trained for"
        )
    return found


def _layers(names: Collection[str]) -> set[str]:
    return {tensor.split(".")[1] for tensor in names if tensor.startswith("layers.")}


def refuse_layers(name: str, layers: int, names: Collection[str]) -> None:
    """More of them than there are tensors of, before Transformers makes a list of so many."""
    found = _layers(names)
    if layers > len(found):
        raise CheckpointError(
            f"{name}: num_hidden_layers is {layers}, and there are tensors of {len(found)}; needs "
            "the tensors of all layers"
        )


def layer_config(name: str, fields: Mapping[str, Any]) -> Any:
    """Transformers' configuration of the layers, of fields that were checked."""
    from transformers import LlamaConfig, Qwen3Config
    from transformers.activations import ACT2FN

    kinds: dict[str, Callable[..., Any]] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    activation = fields.get("hidden_act", "silu")
    if activation not in ACT2FN:
        raise CheckpointError(
            f"{name}: hidden_act is {activation!r:.40}; needs one that Transformers has, as 'silu'"
        )
    ours = {field: value for field, value in fields.items() if field != "model_type"}
    try:
        config = kinds[fields["model_type"]](**ours)
    except Exception as error:  # whatever Transformers makes of values that do not fit
        raise CheckpointError(f"{name}: Transformers refuses it: {error}") from error
    _refuse_heads(name, config)
    _refuse_rope(name, config)
    return config


def _refuse_heads(name: str, config: Any) -> None:
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    if heads % shared or width % 2 or width < 1:
        raise CheckpointError(
            f"{name}: num_attention_heads is {heads}, num_key_value_heads {shared} and head_dim "
            f"{width}; needs a multiple of the second, and an even head_dim"
        )


def _refuse_rope(name: str, config: Any) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if not isinstance(kind, str) or kind not in ("default", *ROPE_INIT_FUNCTIONS):
        raise CheckpointError(
            f"{name}: rope_type is {kind!r:.40}; needs one that Transformers has, as 'default'"
        )
    if kind in ("dynamic", "longrope"):
        raise CheckpointError(
            f"{name}: rope_type is {kind!r}, where positions depend on the batch; needs another"
        )


def checked(
    name: str, fields: Mapping[str, Any], field: str, rule: Rule = SIZE, default: Any = None
) -> Any:
    """A field's value, or the default where it is absent."""
    value = fields.get(field)
    value = default if value is None else value
    if not rule[0](value):
        raise CheckpointError(f"{name}: {field} is {value!r:.40}; needs {rule[1]}")
    return value


def layer_ids(name: str, fields: Mapping[str, Any], field: str) -> tuple[int, ...] | None:
    """A field's list of layers; None without one, which ModelOpt writes as an empty one."""
    if fields.get(field) in (None, []):
        return None
    return (*checked(name, fields, field, _LAYERS),)
