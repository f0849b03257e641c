"""Multi-token heads of several layers: read, lossless, each place drafted by its own layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", minversion="5.24")
from transformers.modeling_layers import MtpModel

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.mtp import MtpNetwork
from rdk_cuda.labs.deep_heads import DeepMtpDrafter, read_layers

from ..integrations import test_state_drafters as states
from ..integrations.mtp.heads import head_of, make, publish


@cache
def deep(size: int = 12) -> tuple[HuggingFaceModel, list[MtpNetwork], Any]:
    model = make("glm4_moe", vocab_size=size)
    networks = [head_of(model, number) for number in range(3)]
    spread = 0.15 if size == states.SIZE else 0.3
    torch.manual_seed(0)
    torch.nn.init.normal_(model.get_output_embeddings().weight.data, std=spread)
    target = HuggingFaceModel(model, state_layers=(networks[0].target_layers,))
    model.config.num_mtp_layers = 3
    theirs = MtpModel(model, 3).eval()
    names = {"enorm": "embedding_norm", "hnorm": "state_norm", "post_norm": "norm", "eh_proj": "fc"}
    for layer, own in zip(theirs.layers, networks, strict=True):
        layer.mtp_block.load_state_dict(own.decoder.layers[0].state_dict())
        for part, name in names.items():
            layer.get_submodule(part).load_state_dict(own.get_submodule(name).state_dict())
    return target, networks, theirs


def test_every_layer_of_a_head_is_read(tmp_path: Path) -> None:
    target = make("glm4_moe")
    layers = [head_of(target, number) for number in range(3)]
    publish(tmp_path, target, *layers, name="glm4_moe")
    for found, own in zip(read_layers(tmp_path, target), layers, strict=True):
        assert torch.equal(found.fc.weight, own.fc.weight)
        attention = found.decoder.layers[0].self_attn.q_proj.weight
        assert torch.equal(attention, own.decoder.layers[0].self_attn.q_proj.weight)


@cache
def made(size: int) -> states.Pair:
    target, networks, theirs = deep(size)
    model = target.model

    def row(_: Tensor, known: list[int], drafted: list[int]) -> Tensor:
        """By the library's own network, that reads all at once."""
        text, count = [*known, *drafted], len(known) - 1
        hidden = model.get_decoder()(torch.tensor([text[:count]])).last_hidden_state
        for place in range(len(text) - count):
            ids = torch.tensor([text[1 + place : count + 1 + place]])
            hidden = theirs.forward_layer(place, hidden, torch.arange(count)[None], None, ids)
        logits: Tensor = model.lm_head(hidden[0, -1])
        return logits

    def with_head(**head: Any) -> DeepMtpDrafter:
        return DeepMtpDrafter(networks, **head)

    return states.pair(model, with_head(), with_head, row)


@pytest.mark.parametrize("heads", [("full", "trimmed", "dynamic")])
def test_what_holds_for_every_drafter_on_states(
    heads: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these heads its samples are judged, too."""
    monkeypatch.setitem(states.KINDS, "deep", made)
    states.test_greedy_output_is_the_target_s_own("deep")
    states.test_each_row_is_what_the_sequence_read_at_once_shows("deep", monkeypatch)
    for head in heads:
        with monkeypatch.context() as patched:
            states.test_samples_have_the_target_s_distribution("deep", head, "block", patched)


def test_more_places_than_layers_and_heads_of_their_own_are_refused() -> None:
    target, networks, _ = deep()
    decoder = SpeculativeDecoder(target, DeepMtpDrafter(networks), draft_length=4)
    with pytest.raises(ValueError, match=r"there are 3 layers; needs .* no more than layers"):
        decoder.generate([[5, 3]], max_new_tokens=12)
    step = make("step3p7")
    with pytest.raises(ValueError, match="have heads of their own; needs layers that share one"):
        DeepMtpDrafter([head_of(step, number) for number in range(2)])
