"""The network of an EAGLE-3 drafter (Li et al., arXiv:2503.01840), of Llama's or Qwen3's layers.

It predicts the token after next from two things: the embedding of the next token, and a state of
the target at the current one. The state is a linear map of three of the target's hidden states.
Further along a draft, which the target has not read yet, the network's own output takes its place.

Its predecessors, EAGLE (arXiv:2401.15077) and EAGLE-2 (arXiv:2406.16858), which differ from each
other in the trees that they draft alone, read the target's last hidden state in that place. They
add no norms of their own around the layers, since the head that follows is the target's.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..huggingface.library import cache_argument


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and variants of an EAGLE-3 drafter.

    Attributes:
        layer: a `LlamaConfig` or `Qwen3Config` with the sizes of the decoder layers. `vocab_size`
            is the target's, V_t, and `num_hidden_layers` is 1 in published drafters.
        draft_size: V_d, rows of the drafter's head.
        target_hidden_size: d_t, width of the target's hidden states.
        state_layers: the layers of the target whose inputs are read; L is what its last layer
            returns, before the last norm. None: 2, L // 2 and L - 3 of its L layers.
        norm_before_residual: the first layer's residual is the normalised state, not the raw one.
        norm_before_fc: one norm over the concatenated states before they are mapped.
        fc_norm: one norm for each of the states instead.
        norm_output: the state handed on along a draft is normalised (EAGLE-3.1).
        eagle2: an EAGLE or EAGLE-2 drafter. It reads the target's last hidden state, after the last
            norm, as it is, so d_t is the width of its own. `fc` maps [embedding | state], the first
            layer's input has no norm, nor has the last one's output, and of the variants above
            there is none.
        fc_bias: `fc` has a bias.
        reads_last: of EAGLE-3, it reads the target's last hidden state alone, after the last norm,
            as it is, and has no `fc`.
    """

    layer: Any
    draft_size: int
    target_hidden_size: int
    state_layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle2: bool = False
    fc_bias: bool = False
    reads_last: bool = False

    def layers_read(self, target_layers: int) -> tuple[int, ...]:
        """List the layers whose inputs are read, of a target with L = `target_layers` layers.

        L itself stands for the last hidden state, after the last norm, and L + 1 before it.
        """
        if self.eagle2 or self.reads_last:
            return (target_layers,)
        layers = self.state_layers or (2, target_layers // 2, target_layers - 3)
        if len(set(layers)) < len(layers) or not all(0 <= at <= target_layers for at in layers):
            raise ValueError(
                f"Eagle3Config: state_layers is {list(layers)}; needs different ones from 0 to "
                f"{target_layers}, the number of the target's layers"
            )
        return tuple(at + (at == target_layers) for at in layers)


class Eagle3Network(nn.Module):
    """The drafter's network. `rdk_cuda.integrations.eagle3.read_checkpoint` loads a published one.

    Layers that are neither Llama's nor Qwen3's are a TypeError.
    """

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        config = replace(config, layer=copy.deepcopy(config.layer))
        config.layer._attn_implementation = "sdpa"
        decoder_layer, norm, rotary = _building_blocks(config.layer)
        self.config = config
        width, states = config.layer.hidden_size, len(config.state_layers or range(3))
        read = 2 * width if config.eagle2 else states * config.target_hidden_size
        self.embed_tokens = nn.Embedding(config.layer.vocab_size, width)
        if not config.reads_last:
            self.fc = nn.Linear(read, width, bias=config.fc_bias)
        self.layers = nn.ModuleList(
            decoder_layer(config.layer, place) for place in range(config.layer.num_hidden_layers)
        )
        self._cache_argument = cache_argument(self.layers[0])
        if config.eagle2:
            self.layers[0].input_layernorm = self.norm = nn.Identity()
        else:
            self._add_own_parts(norm, read)
        self.rotary_emb = rotary(config.layer)
        self.lm_head = nn.Linear(width, config.draft_size, bias=False)

    def _add_own_parts(self, norm: Any, read: int) -> None:
        """Add EAGLE-3's norms, and its first layer, which reads embedding and state."""
        config, first, epsilon = self.config, self.layers[0], self.config.layer.rms_norm_eps
        width = config.layer.hidden_size
        if config.norm_before_fc:
            self.input_norm = norm(read, eps=epsilon)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                norm(config.target_hidden_size, eps=epsilon)
                for _ in range(read // config.target_hidden_size)
            )
        first.hidden_norm = norm(width, eps=epsilon)
        for name in ("q_proj", "k_proj", "v_proj"):
            narrow = getattr(first.self_attn, name)
            wide = nn.Linear(2 * width, narrow.out_features, bias=narrow.bias is not None)
            setattr(first.self_attn, name, wide)
        self.norm = norm(width, eps=epsilon)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse hidden states of the target, in the order of its layers, to `[..., d]`.

        Args:
            states: `[..., 3 d_t]`; with `eagle2` the last one alone, which stays as it is.
        """
        if self.config.eagle2 or self.config.reads_last:
            return states
        if self.config.norm_before_fc:
            states = self.input_norm(states)
        if self.config.fc_norm:
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([n(part) for n, part in zip(self.fc_norm, parts, strict=True)], -1)
        return cast(Tensor, self.fc(states))

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor | None = None,
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Map tokens and the states before them to hidden states `[B, n, d]`.

        Args:
            tokens: `[B, n]` target ids, each the successor of the position that its state is of.
            states: `[B, n, d]`, from `fuse`, or from `handed_on` where the target has none.
            positions: `[B, n]` of the states; absent: 0 to n - 1.
            mask: additive, `[B, 1, n, slots + n]`; absent: causal.
            cache: of keys and values, from Transformers; appended to.
        """
        if positions is None:
            positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        if mask is None:
            mask = states.new_full((tokens.shape[1],) * 2, torch.finfo(states.dtype).min).triu(1)
            mask = mask[None, None]
        shared = {
            "attention_mask": mask,
            self._cache_argument: cache,
            "position_embeddings": self.rotary_emb(states, positions),
        }
        embedded, first = self.embed_tokens(tokens).to(states), 0
        if self.config.eagle2:
            hidden: Tensor = self.fc(torch.cat([embedded, states], dim=-1))
        else:
            hidden, first = self._first_layer(embedded, states, shared), 1
        for layer in self.layers[first:]:
            hidden = layer(hidden, position_ids=positions, **shared)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute `[..., V_d]` from the hidden states that `forward` returned."""
        return cast(Tensor, self.lm_head(self.norm(hidden)))

    def handed_on(self, hidden: Tensor) -> Tensor:
        """Return the states `[..., d]` that stand for the target's own further along a draft."""
        return cast(Tensor, self.norm(hidden)) if self.config.norm_output else hidden

    def _first_layer(self, embedded: Tensor, states: Tensor, shared: dict[str, Any]) -> Tensor:
        layer: Any = self.layers[0]
        normalised = layer.hidden_norm(states)
        residual = normalised if self.config.norm_before_residual else states
        both = torch.cat([layer.input_layernorm(embedded), normalised], dim=-1)
        attended, _ = layer.self_attn(hidden_states=both, **shared)
        hidden = residual + attended
        return cast(Tensor, hidden + layer.mlp(layer.post_attention_layernorm(hidden)))


def _building_blocks(config: Any) -> tuple[Any, Any, Any]:
    if config.model_type == "llama":
        from transformers.models.llama import modeling_llama as llama

        return llama.LlamaDecoderLayer, llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding
    if config.model_type == "qwen3":
        from transformers.models.qwen3 import modeling_qwen3 as qwen3

        return qwen3.Qwen3DecoderLayer, qwen3.Qwen3RMSNorm, qwen3.Qwen3RotaryEmbedding
    raise TypeError(
        f"Eagle3Network: layers are of model_type {config.model_type!r}; needs 'llama' or 'qwen3'"
    )
