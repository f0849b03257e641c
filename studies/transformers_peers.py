"""Transformers' own drafting with heads that we draft with: one sequence, and the whole LM head.

`MTPCandidateGenerator` drafts one token with each layer of a head, `DFlashTokenCandidateGenerator`
a block. Both are given the weights that ours has, so what is accepted differs by chance alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from transformers.modeling_layers import MtpModel

from rdk_cuda.integrations.block_drafters import BlockNetwork
from rdk_cuda.integrations.mtp import MtpNetwork

MTP, DFLASH = "Transformers: MTPCandidateGenerator", "Transformers: DFlashTokenCandidateGenerator"


class Measured(NamedTuple):
    """One continuation: accepted drafts, passes of the target, tokens, and seconds."""

    accepted: int
    passes: int
    tokens: int
    seconds: float


@contextmanager
def library_mtp(model: Any, network: MtpNetwork) -> Iterator[dict[str, Any]]:
    """Yield the arguments by which `generate` drafts with a head's first layer, loaded once."""
    text, own = model.config.get_text_config(decoder=True), network.decoder.config
    text.num_mtp_layers = 1
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None) is not None:
            setattr(text, f"mtp_{name}", getattr(own, name))
    theirs = MtpModel(model, 1).eval()
    (layer,) = theirs.layers
    layer.mtp_block.load_state_dict(network.decoder.layers[0].state_dict())
    parts = {"enorm": network.embedding_norm, "hnorm": network.state_norm}
    parts |= {"eh_proj": network.fc, "post_norm": network.norm}
    for name, part in parts.items():
        layer.get_submodule(name).load_state_dict(part.state_dict())
    # Each call of `generate` would read the files again.
    with patch.object(MtpModel, "from_pretrained", return_value=theirs):
        yield {"use_mtp": True}


def library_block(network: BlockNetwork) -> Any:
    """Make the library's own model of a DFlash drafter, whose names differ."""
    from transformers.models.muse_glimmer_assistant import (
        modeling_muse_glimmer_assistant as library,
    )

    config, layer = network.config, network.config.layer
    sizes = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
    sizes += ["num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters"]
    theirs = library.MuseGlimmerAssistantModel(
        library.MuseGlimmerAssistantConfig(
            **{name: getattr(layer, name) for name in sizes},
            layer_types=["full_attention"] * layer.num_hidden_layers,
            block_size=config.block,
            mask_token_id=config.mask,
            target_layer_ids=[at - 1 for at in config.state_layers],
            attn_implementation="eager",
        )
    )
    names = {"fc.": "encoder.fc.", "hidden_norm.": "encoder.output_norm_enc."}
    theirs.load_state_dict(
        {
            next((b + name[len(a) :] for a, b in names.items() if name.startswith(a)), name): each
            for name, each in network.state_dict().items()
            if not name.startswith("embedding.")  # the target's
        }
    )
    return theirs.eval()


def generated(
    model: Any,
    prompt: Sequence[int],
    *,
    temperature: float,
    seed: int,
    tokens: int,
    **options: Any,
) -> tuple[list[int], Measured]:
    """Continue a prompt by the library's `generate`; returns the text, and how it went."""
    passes = [0]

    def count(*_: Any) -> None:
        passes[0] += 1

    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    options |= sampling if temperature > 0 else {"do_sample": False}
    ids = torch.tensor([prompt])
    torch.manual_seed(seed)
    hook = model.register_forward_hook(count)
    try:
        began = time.thread_time()
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        seconds = time.thread_time() - began
    finally:
        hook.remove()
    new: list[int] = written[0, len(prompt) :].tolist()
    return new, Measured(len(new) - passes[0], passes[0], len(new), seconds)
