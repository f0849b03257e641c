"""Block drafters: the states of the library's own network, lossless, trimmed, from safe files."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen3Config

from rdk_cuda import Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder, StateDrafter
from rdk_cuda.integrations.block_drafters import (
    BlockConfig,
    BlockDrafter,
    BlockNetwork,
    read_block_drafter,
)
from rdk_cuda.integrations.eagle3 import CheckpointError, read_drafts
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from studies.transformers_peers import generated, library_block
from tests.tiny_llamas import llama

WIDTH, LAYERS, BLOCK, RANK = 16, 4, 4, 3
PROMPTS = [[5, 3, 1, 0, 2], [4], [1, 2, 3, 4, 5, 0, 1, 2, 3]]
KINDS = ("dflash", "dspark")


@cache
def target(size: int = 12, spread: float = 0.3) -> Any:
    return llama(size, seed=1, width=WIDTH, layers=LAYERS, initializer_range=spread)


def layer(size: int) -> Any:
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "head_dim": 8, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return Qwen3Config(vocab_size=size, **sizes, **heads)


def random_network(kind: str, size: int = 12) -> BlockNetwork:
    torch.manual_seed(4)
    more = {"from_newest": True, "markov": RANK} if kind == "dspark" else {}
    network = BlockNetwork(BlockConfig(layer(size), (1, 3), WIDTH, BLOCK, size - 1, size, **more))
    for name, weight in network.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight.data, std=1.0 if "markov" in name else 0.3)
        elif "norm" in name:
            weight.data.uniform_(0.5, 1.5)
    return network.eval().requires_grad_(False)


def publish(folder: Path, kind: str, size: int = 12, **changes: Any) -> BlockNetwork:
    """Files as z-lab and DeepSeek publish them; without embeddings, with the target's head."""
    network = random_network(kind, size)
    names = {"markov.": "markov_head.markov_w1."}
    tensors = {}
    for name, weight in network.state_dict().items():
        for own, other in names.items():
            name = name.replace(own, other)
        tensors[name] = weight
    fields = json.loads(layer(size).to_json_string()) | {"block_size": BLOCK}
    fields |= {"architectures": ["DFlashDraftModel"], "use_sliding_window": False}
    ids = {"target_layer_ids": [0, 2], "mask_token_id": size - 1}
    if kind == "dflash":
        fields["dflash_config"] = ids
    else:
        own = {"markov_rank": RANK, "markov_head_type": "vanilla", "enable_confidence_head": True}
        fields |= ids | own | {"confidence_head_with_markov": True}
        generator = torch.manual_seed(4)
        tensors["markov_head.markov_w2.weight"] = torch.randn(size, RANK, generator=generator)
        read = torch.randn(1, WIDTH + RANK, generator=generator)
        tensors |= {"confidence_head.proj.weight": read, "confidence_head.proj.bias": torch.ones(1)}
    tensors |= {name: each for name, each in changes.items() if isinstance(each, torch.Tensor)}
    fields |= {name: each for name, each in changes.items() if not isinstance(each, torch.Tensor)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    return network


@pytest.fixture(params=KINDS)
def read(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[HuggingFaceModel, BlockDrafter]:
    publish(tmp_path, request.param)
    drafter = BlockDrafter(read_block_drafter(tmp_path, target()))
    assert isinstance(drafter, StateDrafter)
    return HuggingFaceModel(target(), state_layers=drafter.state_layers), drafter


def test_its_states_are_those_of_the_library_s_own_network(tmp_path: Path) -> None:
    pytest.importorskip("transformers", minversion="5.24")
    from transformers.cache_utils import DFlashCache

    own = publish(tmp_path, "dflash")
    theirs = library_block(own)
    config = theirs.config
    drafter = BlockDrafter(read_block_drafter(tmp_path, target()))
    prompt = [5, 3, 1, 7, 2, 9]
    with torch.no_grad():
        states = target()(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        read = torch.cat([states[1], states[3]], -1)
        noise = target().get_input_embeddings()(torch.tensor([[8, 11, 11, 11]]))
        kept = DFlashCache(config=config)
        kept.activate_past_recording()
        kept.set_previous_accepted_tokens(len(prompt))
        places = torch.arange(len(prompt) + BLOCK)[None]
        seen = torch.ones(1, len(prompt) + BLOCK)
        arguments = {"position_ids": places, "attention_mask": seen, "cache": kept}
        expected = theirs(noise_embeds=noise, context_hidden_states=read, **arguments)
    drafter.reset(1)
    drafter.observe([read[0]])
    drafter.feed([[*prompt, 8]], [1])
    block = expected.last_hidden_state[:, 1:]
    torch.testing.assert_close(drafter.block, block, rtol=1e-6, atol=1e-6)


def test_it_drafts_what_the_library_s_own_generator_does(tmp_path: Path) -> None:
    publish(tmp_path, "dflash")
    network = read_block_drafter(tmp_path, target())
    options: dict[str, Any] = {"assistant_model": library_block(network)}
    options |= {"speculation_type": "dflash", "temperature": 0, "seed": 0, "tokens": 32}
    text, theirs = generated(target(), PROMPTS[0], **options)
    model = HuggingFaceModel(target(), state_layers=network.config.state_layers)
    decoder = SpeculativeDecoder(model, BlockDrafter(network), draft_length=3)
    found = decoder.generate(PROMPTS[:1], max_new_tokens=32, temperature=0)
    assert found.tokens == [text]
    assert 0 < sum(found.statistics.accepted) == theirs.accepted
    assert found.statistics.target_passes == theirs.passes


def test_a_place_s_row_depends_on_the_draft_before_it_with_a_markov_head_alone(read: Any) -> None:
    model, drafter = read
    model.reset(1)
    states = model.feed([[5, 3, 1]], [1]).states
    rows = []
    for draft in (4, 7):
        drafter.reset(1)
        drafter.observe(states)
        first = drafter.feed([[5, 3, 1, 2]], [1]).logits
        rows.append((first, drafter.feed([[draft]], [1]).logits))
    (first, after_4), (again, after_7) = rows
    assert torch.equal(first, again)
    dspark = drafter.network.config.markov > 0
    assert torch.equal(after_4, after_7) is not dspark
    assert dspark or torch.equal(drafter.full_head[0], target().lm_head.weight)
    if dspark:
        own = drafter.network
        bias = own.head[:, WIDTH:] @ (own.markov.weight[7] - own.markov.weight[4])
        torch.testing.assert_close(after_7[0, 0] - after_4[0, 0], bias)


def test_more_places_than_a_pass_has_are_refused(read: Any) -> None:
    model, drafter = read
    places = drafter.network.config.places
    with pytest.raises(ValueError, match=f"needs at most {places}, as many as BlockDrafter"):
        SpeculativeDecoder(model, drafter, draft_length=places + 1)
    drafter.reset(1)
    with pytest.raises(ValueError, match="then drafts one by one"):
        drafter.feed([[5, 3]], [1])
    assert (
        read_drafts(model, drafter, places)(torch.tensor([[5, 3, 1, 2, 4, 6]])).hidden is not None
    )


# Files.


def test_a_pruned_head_and_embeddings_of_their_own_are_read(tmp_path: Path) -> None:
    kept = [0, 2, 3, 7, 11]
    maps = {"d2t": torch.tensor([own - at for at, own in enumerate(kept)])}
    rows, table, mask = torch.randn(5, WIDTH), torch.randn(12, WIDTH), torch.randn(WIDTH)
    own = {"lm_head.weight": rows, "embed_tokens.weight": table, "mask_embedding": mask}
    publish(tmp_path, "dflash", draft_vocab_size=5, **maps, **own)
    network = read_block_drafter(tmp_path, target())
    assert network.vocabulary == Vocabulary(kept, target_size=12)
    assert torch.equal(network.head, rows)
    assert torch.equal(network.embedding(torch.tensor([3, 11])), torch.stack([table[3], mask]))
    assert BlockDrafter(network).full_head is None
    order = torch.arange(12).flip(0)  # all of the tokens, in another order: the target's rows
    publish(tmp_path, "dflash", d2t=order - torch.arange(12))
    head = read_block_drafter(tmp_path, target()).head
    assert torch.equal(head, target().get_output_embeddings().weight[order])


def test_the_layout_of_speculators_is_read(tmp_path: Path) -> None:
    inside = json.loads(layer(12).to_json_string()) | {"use_sliding_window": False}
    own = {"speculators_model_type": "dspark", "transformer_layer_config": inside}
    own |= {"target_layer_ids": None, "aux_hidden_state_layer_ids": [1, 3]}
    publish(tmp_path, "dspark", **own)
    config = read_block_drafter(tmp_path, target()).config
    assert (config.state_layers, config.from_newest, config.places) == ((1, 3), False, 3)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "causal": ({"is_causal": True}, "its layers are causal or slide"),
    "list": ({"dflash_config": [3]}, "mask_token_id is None"),
    "layers": ({"dflash_config": {"mask_token_id": 3}}, "target_layer_ids is None"),
    "far": ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [7]}}, "needs layers of"),
    "block": ({"block_size": 1}, "block_size is 1"),
    "mask": ({"dflash_config": {"mask_token_id": 12, "target_layer_ids": [0, 2]}}, "reads 12"),
    "deep": ({"num_hidden_layers": 3_000_000}, "num_hidden_layers is 3000000"),
    "kind": ({"model_type": "llama"}, "model_type is 'llama'; needs 'qwen3'"),
    "sliding": ({"layer_types": ["sliding_attention"] * 2}, "without sliding windows"),
    "wide": ({"target_hidden_size": 32}, "target_hidden_size is 32"),
    "pruned": ({"draft_vocab_size": 5}, "draft_vocab_size is 5 of 12"),
    "rank": ({"markov_rank": 3}, "has no bias.weight and no markov.weight"),
    "anchor": ({"markov_rank": 2, "sample_from_anchor": "no"}, "sample_from_anchor is 'no'; needs"),
    "other": ({"other.weight": torch.zeros(2)}, "other.weight has no place"),
    "shape": ({"fc.weight": torch.zeros(16, 16)}, r"fc.weight has shape \[16, 16\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name: str, tmp_path: Path) -> None:
    changes, reason = REFUSED[name]
    publish(tmp_path, "dflash", **changes)
    with pytest.raises(CheckpointError, match=reason):
        read_block_drafter(tmp_path, target())


@pytest.mark.parametrize("name", ["mask_embedding.pt", "pytorch_model.bin"])
def test_pickles_are_refused(name: str, tmp_path: Path) -> None:
    publish(tmp_path, "dflash")
    if name != "mask_embedding.pt":
        (tmp_path / "model.safetensors").unlink()
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match=f"{name} may be a pickle; needs safetensors files"):
        read_block_drafter(tmp_path, target())


def test_no_mask_is_made_for_the_target_s_states(
    read: tuple[HuggingFaceModel, BlockDrafter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would have the square of a prompt's tokens."""
    _, drafter = read
    monkeypatch.setattr(type(drafter._cache), "_masks", lambda *_: pytest.fail("made a mask"))
    drafter.reset(1)
    drafter.observe([torch.ones(9, 2 * WIDTH)])
    assert drafter.feed([[1] * 10], [1]).logits.isfinite().all()
