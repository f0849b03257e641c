"""The network of a block drafter, of Qwen3's layers.

Each layer's keys are those of the target's states, mapped and normed once for all layers, and of
the block itself: the newest token, and masks in the places of drafts. All of the block see all.
(DFlash, and DSpark, which adds a bias by the token before; names as in vLLM 0.33's
`qwen3_dflash.py` and `qwen3_dspark.py`.)
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and variants of a block drafter.

    Attributes:
        layer: a `Qwen3Config` of its layers; `vocab_size` is the target's, V_t.
        state_layers: the target's layers whose inputs are read; L is its last hidden state.
        target_hidden_size: d_t, width of the target's states.
        block: tokens of a pass, the newest one and masks.
        mask: the target token whose embedding stands for a mask.
        draft_size: V_d, rows of its head.
        from_newest: the newest token's row is a draft's, too, so there are `block` of them, not
            one less.
        markov: r, the rank of the bias by the token before; 0 for none.
    """

    layer: Any
    state_layers: tuple[int, ...]
    target_hidden_size: int
    block: int
    mask: int
    draft_size: int
    from_newest: bool = False
    markov: int = 0

    @property
    def places(self) -> int:
        """How many tokens a pass drafts."""
        return self.block - (not self.from_newest)


class BlockNetwork(nn.Module):
    """The network; `read_block_drafter` loads a published one.

    Attributes:
        embedding: of tokens, its own or the target's, and
        head: `[V_d, d]`; with a Markov head `[V_d, d + r]`, for states with `w1` of the token
            before. Both are set by whoever loads it.
        vocabulary: which target token each row of the head stands for.
    """

    embedding: Any
    head: Tensor
    vocabulary: Any

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        from transformers.models.qwen3 import modeling_qwen3 as qwen3

        self.config, layer = config, copy.deepcopy(config.layer)
        layer._attn_implementation = "sdpa"
        width, epsilon = layer.hidden_size, layer.rms_norm_eps
        states = len(config.state_layers) * config.target_hidden_size
        self.fc = nn.Linear(states, width, bias=False)
        self.hidden_norm = qwen3.Qwen3RMSNorm(width, eps=epsilon)
        self.layers = nn.ModuleList(
            qwen3.Qwen3DecoderLayer(layer, place) for place in range(layer.num_hidden_layers)
        )
        self.norm = qwen3.Qwen3RMSNorm(width, eps=epsilon)
        self.rotary_emb = qwen3.Qwen3RotaryEmbedding(layer)
        if config.markov:
            self.markov = nn.Embedding(layer.vocab_size, config.markov)

    def forward(
        self, tokens: Tensor, states: Tensor, positions: Tensor, mask: Tensor, cache: Any
    ) -> Tensor:
        """The drafts' states `[B, places, d]`.

        Args:
            tokens: `[B, block]`, the newest one and masks.
            states: `[B, W, D]` of the target, that the cache does not have.
            positions: `[B, W + block]`, of both.
            mask: additive, `[B, 1, block, slots + W + block]`.
            cache: of keys and values, from Transformers; appended to, the block at the end.
        """
        hidden: Tensor = self.embedding(tokens).to(states)
        context = self.hidden_norm(self.fc(states))
        table = self.rotary_emb(hidden, positions)
        layers: Any = self.layers
        for number, layer in enumerate(layers):
            normed = layer.input_layernorm(hidden)
            both = torch.cat([context, normed], dim=1)
            hidden = hidden + _attended(layer.self_attn, normed, both, table, mask, cache, number)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        last = self.norm(hidden)
        return cast(Tensor, last if self.config.from_newest else last[:, 1:])

    def with_previous(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Make the head's input of states `[..., d]` and what is known of the tokens before."""
        if not self.config.markov:
            return hidden
        previous: Tensor = self.markov(tokens).to(hidden)
        return torch.cat([hidden, previous], dim=-1)


def _attended(
    attention: Any,
    queries: Tensor,
    both: Tensor,
    table: tuple[Tensor, Tensor],
    mask: Tensor,
    cache: Any,
    number: int,
) -> Tensor:
    """Compute what a layer's attention adds to the block."""

    def heads(states: Tensor) -> Tensor:
        split: Tensor = states.unflatten(-1, (-1, attention.head_dim))
        return split.transpose(1, 2)

    def rotated(states: Tensor, rows: slice) -> Tensor:
        first, second = states.chunk(2, dim=-1)
        cos, sin = (part[:, None, rows] for part in table)
        turned: Tensor = states * cos + torch.cat([-second, first], dim=-1) * sin
        return turned

    block = slice(-queries.shape[1], None)
    q = rotated(attention.q_norm(heads(attention.q_proj(queries)).contiguous()), block)
    k = rotated(attention.k_norm(heads(attention.k_proj(both)).contiguous()), slice(None))
    k, v = cache.update(k, heads(attention.v_proj(both)), number)
    seen = nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=attention.scaling, enable_gqa=True
    )
    return cast(Tensor, attention.o_proj(seen.transpose(1, 2).flatten(2)))
