"""Multi-token heads of several layers: read, lossless, each place drafted by its own layer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from table_model import chi_square, continuations, joint_of, judge_by_another_q

pytest.importorskip("transformers", minversion="5.24")
from transformers.modeling_layers import MtpModel

from rdk_cuda.decoding import SpeculativeDecoder, StateDrafter
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.integrations.mtp import MtpNetwork
from rdk_cuda.labs.deep_heads import DeepMtpDrafter, read_layers

from ..integrations.mtp.heads import head_of, make, publish

SIZE, PROMPT = 6, [2, 4]
PROMPTS = [[5, 3, 1, 7, 2], [4], [1, 2, 3, 4, 5, 9, 1, 2, 3]]


@cache
def deep(size: int = 12) -> tuple[HuggingFaceModel, list[MtpNetwork], Any]:
    model = make("glm4_moe", vocab_size=size)
    networks = [head_of(model, number) for number in range(3)]
    spread = 0.3 if size == SIZE else 0.15
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


def test_a_layer_of_several_blocks_is_one(tmp_path: Path) -> None:
    target = make("nemotron_h")
    publish(tmp_path, target, head_of(target), name="nemotron_h")
    assert len(read_layers(tmp_path, target)) == 1


class CheckedDeep(DeepMtpDrafter):
    """Compares each row of logits with the library's own network, that reads all at once."""

    target: Any
    theirs: Any
    compared = 0

    @torch.no_grad()
    def feed(self, tokens: Any, keep: Any) -> Any:
        output = super().feed(tokens, keep)
        for b, text in enumerate(self._tokens):
            if keep[b]:
                known = self.observed[b]
                states = self.target.get_decoder()(torch.tensor([text[:known]])).last_hidden_state
                for place in range(len(text) - known):
                    ids = torch.tensor([text[1 + place : known + 1 + place]])
                    positions = torch.arange(known)[None]
                    states = self.theirs.forward_layer(place, states, positions, None, ids)
                expected = self.target.lm_head(states[0, -1])
                torch.testing.assert_close(output.logits[b, 0], expected, rtol=1e-4, atol=1e-4)
                self.compared += 1
        return output


def test_each_place_is_drafted_by_its_own_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.slot_cache._PREFILL_COLUMNS", 3)
    target, networks, theirs = deep()
    drafter = CheckedDeep(networks)
    drafter.target, drafter.theirs = target.model, theirs
    assert isinstance(drafter, StateDrafter)
    decoder = SpeculativeDecoder(target, drafter, draft_length=3)
    statistics = decoder.generate(PROMPTS, max_new_tokens=12, seeds=[1, 2, 3]).statistics
    assert 0 < sum(statistics.accepted) < sum(statistics.drafted)
    assert drafter.compared > 30


def test_so_is_greedy_output_and_more_places_than_layers_are_refused() -> None:
    target, networks, _ = deep()
    settings: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0}
    alone = SpeculativeDecoder(target, draft_length=0).generate(PROMPTS, **settings).tokens
    for length in (1, 2, 3):
        decoder = SpeculativeDecoder(target, DeepMtpDrafter(networks), draft_length=length)
        assert decoder.generate(PROMPTS, **settings).tokens == alone
    with pytest.raises(ValueError, match="draft_length is 4; needs at most 3, as many as DeepMtp"):
        SpeculativeDecoder(target, DeepMtpDrafter(networks), draft_length=4)
    step = make("step3p7")
    with pytest.raises(ValueError, match="have heads of their own; needs layers that share one"):
        DeepMtpDrafter([head_of(step, number) for number in range(2)])


def deep_p_value() -> float:
    target, networks, _ = deep(SIZE)
    decoder = SpeculativeDecoder(target, DeepMtpDrafter(networks), draft_length=3, method="block")
    found = continuations(lambda: decoder, PROMPT, 3, 6_000)
    return chi_square(found, joint_of(target.model, PROMPT, 3))


def test_samples_of_all_layers_have_the_target_s_distribution() -> None:
    assert deep_p_value() > 1e-4


def test_control_all_layers_judged_by_another_q_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by_another_q(monkeypatch)
    assert deep_p_value() < 1e-6
