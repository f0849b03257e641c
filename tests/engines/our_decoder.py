"""The same drafters in the decoder of this package, without any engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from rdk_cuda import Affinity
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.eagle3 import Eagle3Drafter, load_state_drafter, read_checkpoint
from rdk_cuda.integrations.huggingface import HuggingFaceModel, drafting_model, load_drafter

from .pair import EAGLE3, TARGET


def our_decoder(model: Path, directory: Path | None, draft_length: int) -> SpeculativeDecoder:
    """It drafts with `model`, or with what a directory has made of it."""
    target = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    if model == EAGLE3:
        if directory is None:
            checkpoint = read_checkpoint(EAGLE3, target)
            drafter = Eagle3Drafter(checkpoint.network, target.config.num_hidden_layers)
            affinity, dynamic = Affinity.intersection(checkpoint.vocabulary), None
        else:
            drafter, pruned, _ = load_state_drafter(directory, target)
            affinity, dynamic = pruned.affinity, pruned.dynamic_tokens
        reads = HuggingFaceModel(target, state_layers=drafter.state_layers)
        return SpeculativeDecoder(
            reads, drafter, affinity, draft_length=draft_length, dynamic_tokens=dynamic
        )
    if directory is None:
        whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        return SpeculativeDecoder(
            HuggingFaceModel(target), HuggingFaceModel(whole), draft_length=draft_length
        )
    loaded, pruned, _ = load_drafter(directory)
    return SpeculativeDecoder(
        HuggingFaceModel(target),
        drafting_model(loaded, pruned),
        pruned.affinity,
        draft_length=draft_length,
        dynamic_tokens=pruned.dynamic_tokens,
    )


def accepted_per_step(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperature: float,
    seeds: Sequence[int],
) -> float:
    """Accepted drafts of a step that has drafted, on average: what vLLM's metrics count."""
    made = decoder.generate(prompts, max_new_tokens=tokens, temperature=temperature, seeds=seeds)
    return sum(made.statistics.accepted) / made.statistics.drafted[0]
