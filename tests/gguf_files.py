"""A tiny Gemma 3 with random weights as a GGUF file, its tokenizer inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from tests.tiny_models import VOCABULARY, save_tokenizer

WINDOW = 16


def gemma(hidden: int = 16, seed: int = 1) -> Any:
    """Five layers with a sliding window, and one without."""
    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        vocab_size=VOCABULARY + 1,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=6,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=512,
        sliding_window=WINDOW,
        tie_word_embeddings=False,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    return Gemma3ForCausalLM(config).eval()


def save_gguf(file: Path, model: Any) -> None:
    """With names and numbers as llama.cpp's converter writes them, in float32."""
    config = model.config
    file.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(file, "gemma3")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_sliding_window(config.sliding_window)
    save_tokenizer(file.parent / "of the file")
    content = json.loads((file.parent / "of the file" / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    tokens = sorted(content["vocab"], key=content["vocab"].__getitem__)
    writer.add_token_list([*tokens, "<mask>"])  # which a tokenizer of Gemma has
    writer.add_token_merges([" ".join(pair) for pair in content["merges"]])
    for add in (writer.add_eos_token_id, writer.add_bos_token_id, writer.add_unk_token_id):
        add(0)
    writer.add_add_bos_token(False)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        shifted = weight + 1 if name.endswith("norm.weight") else weight
        stem = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{stem}.weight", shifted.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
