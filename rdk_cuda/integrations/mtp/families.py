"""How families of models publish their multi-token heads, by the loaders of vLLM 0.33."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Family:
    """The names of a head's tensors, without `model.` or `language_model.`, and how it computes.

    In names `{k}` is the number of the head's layer, `{after}` that number behind the target's
    layers, and `{last}` the last block of a layer that has several.

    Attributes:
        models: model types of the target's text configuration.
        embedding_norm, state_norm, map: what makes one input of the two.
        norm: of the layer's output, before the head; empty where there is none.
        layer: what the names of the decoder layer's tensors begin with.
        head: a head of its own; the target's where the files have none, or a copy.
        state_first: the map reads [state | embedding], not [embedding | state].
        hands_on_norm: along a draft the state is what the norm made of the layer's output.
        as_first_layer: its attention is of the target's first layer's type, not full.
        blocks: the layer is a row of the target's blocks, with numbers behind `layer`.
        renamed: parts of names, as patterns, and what Transformers calls them.
        settings: of the layer's configuration, where the target's says another thing.
    """

    models: tuple[str, ...]
    embedding_norm: str
    state_norm: str
    map: str
    norm: str
    layer: str
    head: str = ""
    state_first: bool = False
    hands_on_norm: bool = True
    as_first_layer: bool = False
    blocks: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def own_name(self, published: str) -> str:
        """A tensor's name without what wraps the text model, and as Transformers has it."""
        name = re.sub(r"^((model|language_model|backbone)\.)+", "", published)
        for pattern, other in self.renamed.items():
            name = re.sub(pattern, other, name)
        return name


def _family(*models: str, begin: str, norm: str, layer: str | None = None, **more: Any) -> Family:
    """One whose parts have DeepSeek's names, which begin alike."""
    parts = {"embedding_norm": "enorm", "state_norm": "hnorm", "map": "eh_proj", "norm": norm}
    names: dict[str, Any] = {part: begin + name for part, name in parts.items()}
    names |= {"layer": begin if layer is None else layer}
    return Family(models, **names, **more)


_QWEN: dict[str, Any] = {
    "embedding_norm": "mtp.pre_fc_norm_embedding",
    "state_norm": "mtp.pre_fc_norm_hidden",
    "map": "mtp.fc",
    "norm": "mtp.norm",
    "layer": "mtp.layers.{k}.",
}
_AFTER, _MTP = "layers.{after}.", "mtp.layers.{k}."
_DEEPSEEK = ("deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa")
FAMILIES: dict[str, Family] = {
    "Qwen3-Next": Family(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "mellum"), **_QWEN),
    "EXAONE 4.5": Family(
        ("exaone4", "exaone_moe"),
        as_first_layer=True,
        settings={"mlp_layer_types": ["dense"]},
        **_QWEN,
    ),
    "DeepSeek V3": _family(
        *_DEEPSEEK,
        "bailing_hybrid",
        begin=_AFTER,
        norm="shared_head.norm",
        head=_AFTER + "shared_head.head",
    ),
    "HunYuan 3": _family("hy_v3", begin=_AFTER, norm="final_layernorm"),
    "Step 3.5": _family(
        "step3p5",
        begin=_AFTER,
        norm="shared_head.norm",
        head=_AFTER + "shared_head.output",
        hands_on_norm=False,
        renamed={r"\.transformer\.": "."},
    ),
    "MiMo": Family(
        ("mimo",),
        "mtp_layers.{k}.token_layernorm",
        "mtp_layers.{k}.hidden_layernorm",
        "mtp_layers.{k}.input_proj",
        "mtp_layers.{k}.final_layernorm",
        "mtp_layers.{k}.",
        state_first=True,
    ),
    "MiMo-V2": _family(
        "mimo_v2_flash",
        begin=_MTP,
        norm="final_layernorm",
        renamed={"pre_mlp_layernorm": "post_attention_layernorm"},
        settings={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
    ),
    "ERNIE 4.5": Family(
        ("ernie4_5_moe",),
        "mtp_emb_norm.{k}",
        "mtp_hidden_norm.{k}",
        "mtp_linear_proj.{k}",
        "",
        "mtp_block.{k}.",
        hands_on_norm=False,
        settings={"moe_layer_start_index": 1 << 20},  # dense
    ),
    "Nemotron-H": replace(
        _family("nemotron_h", begin="mtp.layers.0.", norm="", layer="mtp.layers.", blocks=True),
        norm="mtp.layers.{last}.final_layernorm",
    ),
}
"""By the name of the first, or best known, of each."""

# Beside a head's own tensors: copies of the target's embeddings, and tables that are computed.
COPIES = re.compile(r"(^|\.)(embed_tokens|rotary_emb)\.")


def family_of(model_type: str) -> Family | None:
    """The family that a target's type belongs to."""
    return next((each for each in FAMILIES.values() if model_type in each.models), None)
