"""The network of a multi-token head, made of the target's own classes.

It is EAGLE-2's with norms: a decoder layer over a map of [embedding of the next token | the
target's last state]. The layer runs as a model of the target's class that has no other layer, so
its masks, rotary tables, experts and indexers are the library's own.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from ..eagle3.network import Eagle3Config, Eagle3Network
from ..huggingface.library import cache_argument
from ..huggingface.placement import weight_of
from ..huggingface.states import last_norm
from .families import Family


class MtpNetwork(Eagle3Network):
    """A layer of multi-token prediction, for the drafters and readers of EAGLE-3.

    Args:
        decoder: a model of the target's class, with the head's layer or blocks alone; its last norm
            becomes the network's.
        target: from `AutoModelForCausalLM`.
        family: how the head computes.
        head: `[V, d]`, a head of its own; None: the target's.

    Attributes:
        target_layers: how many the target has.
        own_head: it is given, and not the target's.
        stored: the dtype of its tensors in the files.
        lm_head: `weight` and `bias` of the head, which is the target's or its own.
    """

    def __init__(
        self, decoder: Any, target: Any, family: Family, *, head: Tensor | None = None
    ) -> None:
        nn.Module.__init__(self)
        config = decoder.config
        self.family, self.own_head, self.stored = family, head is not None, torch.float32
        self.target_layers: int = target.config.get_text_config(decoder=True).num_hidden_layers
        embedding, own = target.get_input_embeddings(), target.get_output_embeddings()
        weight, bias = weight_of(own), getattr(own, "bias", None)
        if head is not None:
            weight, bias = head.to(weight), None
        # The target's own tensors are no parameters of this module.
        self._shared = embedding, SimpleNamespace(weight=weight, bias=bias)
        rows, width = weight.shape
        self.config = Eagle3Config(
            config, rows, width, eagle2=True, norm_output=family.hands_on_norm
        )
        last = last_norm(decoder)
        norm = getattr(decoder, last)
        self.embedding_norm, self.state_norm = copy.deepcopy(norm), copy.deepcopy(norm)
        self.norm = norm if family.norm else nn.Identity()
        setattr(decoder, last, nn.Identity())
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.decoder = decoder
        self._cache_argument = cache_argument(decoder)
        self.to(embedding.weight.device, embedding.weight.dtype).eval().requires_grad_(False)

    @property
    def lm_head(self) -> Any:  # type: ignore[override]
        """As above."""
        return self._shared[1]

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """As `Eagle3Network.forward`."""
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if mask is not None:
            mask = mask.expand(len(tokens), -1, -1, -1)
        embedded = self.embedding_norm(self._shared[0](tokens).to(states))
        halves = [embedded, self.state_norm(states)]
        fused = self.fc(torch.cat(halves[::-1] if self.family.state_first else halves, dim=-1))
        hidden: Tensor = self.decoder(
            inputs_embeds=fused,
            attention_mask=mask,
            position_ids=positions.expand(len(tokens), -1),
            use_cache=cache is not None,
            **{self._cache_argument: cache},
        ).last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., V]` of the hidden states that `forward` returned."""
        return nn.functional.linear(self.norm(hidden), self.lm_head.weight, self.lm_head.bias)


def layer_config(target: Any, family: Family, number: int = 0) -> Any:
    """The configuration of a model of the target's class that is one layer of its head."""
    text = copy.deepcopy(target.config.get_text_config(decoder=True))
    if getattr(text, "num_mtp_layers", None) and (
        getattr(text, "layer_types", None) is None or getattr(text, "mtp_layer_types", None)
    ):
        text = text.get_mtp_config()  # also what differs by layer otherwise
    settings: dict[str, Any] = {"num_hidden_layers": 1, "vocab_size": 1, "pad_token_id": 0}
    blocks = getattr(text, "mtp_layers_block_type", None)
    if family.blocks and blocks:
        settings |= {"layers_block_type": blocks, "num_hidden_layers": len(blocks)}
    for name in ("layer_types", "mlp_layer_types"):
        kinds = getattr(text, name, None)
        if kinds is not None and not family.blocks:
            usual = "full_attention" if "full_attention" in kinds else kinds[-1]
            usual = kinds[0] if family.as_first_layer else usual
            own = getattr(text, f"mtp_{name}", None) or [usual]
            settings[name] = [own[min(number, len(own) - 1)]]
    # Where a target's first layers are dense, its head's is not.
    settings |= {"first_k_dense_replace": 0, "mlp_only_layers": [], **family.settings}
    for name, value in settings.items():
        if hasattr(text, name):
            setattr(text, name, value)
    text.quantization_config = None
    text._attn_implementation = target.config._attn_implementation
    return text
