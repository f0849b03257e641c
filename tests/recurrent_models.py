"""Tiny models with random weights that keep states, or choose by an indexer, by model type."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from rdk_cuda.decoding import Proposal, Proposer, Step

SIZE, PLACES = 61, 4
SMALL: dict[str, Any] = {
    "vocab_size": SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
ALTERNATING = {"layer_types": ["linear_attention", "full_attention"] * 2}
CONVOLUTIONS = {"layer_types": ["conv", "full_attention"] * 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 16}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
LATENT = ALTERNATING | {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
TYPES: dict[str, dict[str, Any]] = {
    # Delta rules.
    "qwen3_5_text": DELTA | ALTERNATING | {"head_dim": 16},
    "qwen3_5_moe_text": DELTA | ALTERNATING | SHARED | {"head_dim": 16},
    "qwen3_next": DELTA | ALTERNATING | SHARED | {"head_dim": 8},
    "olmo_hybrid": DELTA | ALTERNATING | {"linear_num_key_heads": 4},
    "kimi_linear": LATENT | {"linear_head_dim": 8, "linear_num_heads": 4},
    "bailing_hybrid": LATENT
    | {"head_dim": 8, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "lara_mini": DELTA | SHARED | {"head_dim": 8, "sliding_window": 6},
    # Mamba 2.
    "nemotron_h": {
        "layers_block_type": [
            "linear_attention",
            "mlp",
            "full_attention",
            "linear_attention",
            "moe",
        ],
        "head_dim": 8,
        "ssm_state_size": 16,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "n_groups": 1,
        "chunk_size": 8,
        "n_routed_experts": 4,
        "moe_intermediate_size": 16,
        "moe_shared_expert_intermediate_size": 16,
    },
    "granitemoehybrid": MAMBA
    | ALTERNATING
    | {"num_local_experts": 4, "shared_intermediate_size": 16},
    "bamba": MAMBA | {"attn_layer_indices": [1, 3]},
    "falcon_h1": MAMBA | {"num_hidden_layers": 2, "mamba_d_ssm": 64},
    "mamba2": {"num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "state_size": 16}
    | {"n_groups": 1, "chunk_size": 8},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_d_state": 8,
        "n_mamba_heads": 8,
        "mamba_headdim": 8,
        "chunk_size": 8,
        "num_key_value_heads": 4,
    },
    # Mamba: one token at a time.
    "mamba": {"num_hidden_layers": 2, "state_size": 8},
    "falcon_mamba": {"num_hidden_layers": 2, "state_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8},
    # Convolutions alone.
    "lfm2": CONVOLUTIONS | {"block_auto_adjust_ff_dim": False},
    "lfm2_moe": CONVOLUTIONS | EXPERTS | {"num_dense_layers": 1},
    "lfm3": {"head_dim": 8, "sliding_window": 6}
    | {"layer_types": ["conv", "full_attention", "conv", "sliding_attention"]},
    "zaya": {"num_hidden_layers": 2, "head_dim": 8, "num_experts": 4}
    | {"moe_intermediate_size": 16, "router_hidden_size": 16},
}
# Layers that see what an indexer chooses, of so many heads that few scores are equal.
INDEXED: dict[str, Any] = {
    **{
        name: own
        for name, own in LATENT.items()
        if name not in ("layer_types", "num_local_experts")
    },
    **{"q_lora_rank": 16, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **{"n_group": 1, "topk_group": 1, "num_hidden_layers": 2},
    "pad_token_id": None,  # whose embedding would be zero, and its scores equal
    **{"index_topk": 8, "index_head_dim": 16, "index_n_heads": 16},
}
INDEXERS: dict[str, dict[str, Any]] = {
    "deepseek_v32": INDEXED,
    "glm_moe_dsa": INDEXED,
    "axk2": INDEXED | {"gated_norm_rank": 8},
    "hy_v4": INDEXED | {"hc_mult": 2},
    "dots3_note_text": INDEXED | {"sliding_window": 6, "shared_experts_intermediate_size": 16},
    "qwen4_exp_text": DELTA
    | SHARED
    | {"head_dim": 16, "layer_types": ["linear_attention", "indexed_attention"] * 2}
    | {"hc_count": 2, "hc_lowrank": 8, "indexer_n_heads": 16, "indexer_kv_heads": 1}
    | {"indexer_head_dim": 16, "indexer_budget": 8, "indexer_compress_ratio": 4},
}
# Read one by one, each over a cache of the library: gaps between slots would matter to them.
PATCHES = {"depth": 1, "num_heads": 2, "hidden_size": 16, "intermediate_size": 16}
ROWS: dict[str, dict[str, Any]] = {
    "llama4_text": {"num_local_experts": 2, "attention_chunk_size": 8, "head_dim": 8}
    | {"intermediate_size_mlp": 48, "floor_scale": 4},
    "deepseek_v4": {"moe_intermediate_size": 16, "index_topk": 8}
    | {"head_dim": 16, "num_key_value_heads": 1, "q_lora_rank": 16, "o_groups": 2, "hc_mult": 2}
    | {"o_lora_rank": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6}
    | {"index_n_heads": 16, "index_head_dim": 16, "mlp_layer_types": ["moe"] * 4}
    | {
        "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"] * 2,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 7},
    },
    "inkling_text": {"head_dim": 8, "layer_types": ["hybrid_sliding", "hybrid"] * 2}
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8}
    | {"sliding_window_size": 6, "d_rel": 4, "rel_extent": 16, "mlp_layer_types": ["dense"] * 4},
    "minimax_m3_vl_text": {"head_dim": 8, "dense_intermediate_size": 48, "rotary_dim": 4}
    | {"shared_intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2}
    | {"index_n_heads": 2, "index_head_dim": 8, "index_block_size": 4, "index_topk_blocks": 2}
    | {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2},
    "glm5_next": {
        "text_config": SMALL
        | LATENT
        | INDEXED
        | {"num_hidden_layers": 4, "linear_head_dim": 8, "linear_num_heads": 4, "index_kpool": 4}
        | {"hc_mult": 2, "qk_rope_head_dim": 0, "head_dim": 0, "mlp_layer_types": ["dense"] * 4}
        | ALTERNATING,
        "vision_config": PATCHES | {"out_hidden_size": 32, "projection_intermediate_size": 32},
        **{f"image{part}_token_id": 50 + n for n, part in enumerate(("", "_start", "_end"))},
        **{f"video{part}_token_id": 53 + n for n, part in enumerate(("", "_start", "_end"))},
    },
    "gpt_neo": {"num_layers": 4, "num_heads": 4, "window_size": 6}
    | {"attention_types": [[["global", "local"], 2]]},
    "falcon": {"alibi": True, "new_decoder_architecture": False},
}
# Refused: their pasts are elsewhere, or their windows begin where their first pass ends.
REFUSED: dict[str, dict[str, Any]] = {
    "minimax": {"block_size": 8, "num_local_experts": 2},
    "recurrent_gemma": {"lru_width": 32, "num_hidden_layers": 3},
    "xlstm": {"num_blocks": 2, "num_heads": 4},
    "rwkv": {"attention_hidden_size": 32},
    "unlimited_ocr": {
        "text_config": SMALL
        | {"num_hidden_layers": 2, "sliding_window": 6, "n_routed_experts": 4}
        | {"n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        "image_token_id": 50,
    },
    "bloom": {"n_layer": 2, "n_head": 4},
}
STEPWISE = {"mamba", "falcon_mamba", "jamba"}
READ_AGAIN = STEPWISE | {"zaya"}  # by whole mixers: their states are not of a kernel that is known
# One for each way to keep a state: the others differ in what is around it.
FEW = ("qwen3_5_text", "nemotron_h", "falcon_h1", "jamba", "lfm3", "qwen4_exp_text", "deepseek_v4")
EACH = [
    pytest.param(name, marks=[] if name in FEW else pytest.mark.ci)
    for name in TYPES | INDEXERS | ROWS
]


def recurrent(name: str, seed: int = 0, **changes: Any) -> Any:
    """Of this model type, its weights large enough to matter; skipped where a release lacks it."""
    if name not in transformers.CONFIG_MAPPING:
        pytest.skip(f"Transformers {transformers.__version__} has no {name}")
    arguments = (REFUSED | TYPES | INDEXERS | ROWS).get(name, {}) | changes
    kind = "AutoModelForImageTextToText"
    if "text_config" not in arguments:
        arguments, kind = SMALL | arguments, "AutoModelForCausalLM"
    config = transformers.AutoConfig.for_model(name, **arguments)
    torch.manual_seed(seed)
    model = getattr(transformers, kind).from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for key, weight in model.named_parameters():
            # Larger ones there would make states forget at once.
            plain = weight.dim() > 1 and "A_log" not in key and "conv" not in key
            weight.mul_(3.0 if plain else 1.0)
    return model.eval()


class Spoilt(Proposer):
    """Drafts that are right up to a random place, as chains or as one branch of a tree."""

    def __init__(self, texts: list[list[int]], *, trees: bool = False) -> None:
        self.texts, self.trees = texts, trees

    def reset(self, batch_size: int) -> None:
        self.rng = random.Random(batch_size)

    def propose(self, sequences: Sequence[Any], step: Step) -> Proposal:
        chains = []
        for text, s in zip(self.texts, sequences, strict=False):
            draft = text[s.length : s.length + PLACES]
            spoilt = self.rng.randrange(PLACES + 1)
            if spoilt < len(draft):
                draft[spoilt] = (draft[spoilt] + 1) % SIZE
            chains.append(draft)
        if not self.trees:
            return Proposal.fixed(chains, step)
        # Two roots with children each; the chain's places lie between the others.
        tokens = torch.randint(1, SIZE, (len(chains), 2 * PLACES), generator=torch.manual_seed(3))
        parents = torch.tensor([-1, -1, *range(2 * PLACES - 2)]).repeat(len(chains), 1)
        for row, chain in zip(tokens, chains, strict=True):
            row[1::2][: len(chain)] = torch.tensor(chain)
        return Proposal.tree(tokens, parents, step)


NEW = 20
PROMPTS = [[random.Random(n).randrange(1, SIZE) for _ in range(n)] for n in (7, 1, 23, 12)]


@cache
def truth(name: str) -> list[list[int]]:
    """Have the library continue each prompt, alone."""
    model, texts = recurrent(name), []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
        new = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        texts.append(new[0, len(prompt) :].tolist())
    return texts


def mostly_right(name: str, *, trees: bool = False) -> Spoilt:
    return Spoilt([old + new for old, new in zip(PROMPTS, truth(name), strict=True)], trees=trees)
