"""A tiny target, and drafters near it: with its vocabulary, and with a pruned one."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch

from rdk_cuda import Affinity, RecentTokens, Vocabulary
from rdk_cuda.drafter import prune_head
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.huggingface.generate import Generate
from tests.tiny_llamas import llama

SIZE, CONTEXT = 61, 96
VOCABULARY = Vocabulary(torch.arange(10, 34), SIZE)
PAD = 60


@cache
def target(layers: int = 2, size: int = SIZE, spread: float = 4.0) -> Any:
    """Random weights, large enough to matter. Its generation ends at no token."""
    of = {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": CONTEXT}
    of |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = llama(size, seed=0, width=32, layers=layers, heads=4, **of)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(spread if weight.dim() > 1 else 1.0)
    return model


@cache
def drafter(noise: float = 0.1, **of: Any) -> Any:
    """The target with noise in its weights: it often agrees."""
    model = copy.deepcopy(target(**of))
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * weight.std() * torch.randn_like(weight))
    return model


def full(**options: Any) -> Generate:
    """With the drafter's own head."""
    return Generate(drafter(), **{"draft_length": 3, **options})


def pruned(**options: Any) -> Generate:
    """With virtual and dynamic tokens for what its head has lost."""
    clusters = torch.arange(SIZE) % 3
    clusters[VOCABULARY.draft_ids] = -1
    affinity = Affinity.virtual_tokens(VOCABULARY, clusters, torch.ones(SIZE))
    weight = drafter().get_output_embeddings().weight.detach()
    head, _ = prune_head(weight, None, VOCABULARY, virtual=affinity)
    return Generate(
        HuggingFaceModel(drafter(), head=head),
        affinity,
        vocabulary=VOCABULARY,
        dynamic_tokens=RecentTokens(VOCABULARY, width=8, window=20),
        **{"draft_length": 4, **options},
    )


def padded(*lengths: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left, as a tokenizer gives them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(SIZE - 1, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) >= max(lengths) - torch.tensor(lengths)[:, None]
    return {"input_ids": ids.where(mask, PAD), "attention_mask": mask.long()}
