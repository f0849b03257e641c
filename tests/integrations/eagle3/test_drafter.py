"""EAGLE's drafters by themselves. What holds for every drafter on states: `test_state_drafters`."""

from typing import Any

import pytest
import torch
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.eagle3 import Eagle3Config, Eagle3Drafter, Eagle3Network
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from tests.tiny_llamas import llama, shape

WIDTH, LAYERS = 16, 8


def target(size: int, gemma: bool = False) -> Any:
    if not gemma:
        return llama(size, seed=1, width=WIDTH, layers=LAYERS, initializer_range=0.3)
    torch.manual_seed(1)
    sizes = {"vocab_size": size, "hidden_size": WIDTH, "intermediate_size": 16}
    sizes |= {"num_hidden_layers": LAYERS, "num_attention_heads": 2, "initializer_range": 0.3}
    config = Gemma3TextConfig(**sizes, num_key_value_heads=1, head_dim=8, sliding_window=4)
    return Gemma3ForCausalLM(config).eval()


def network(size: int, draft_size: int, **variant: Any) -> Eagle3Network:
    torch.manual_seed(2)
    layer = shape(size, width=WIDTH if variant.get("eagle2") else 24, heads=4)
    result = Eagle3Network(Eagle3Config(layer, draft_size, target_hidden_size=WIDTH, **variant))
    for parameter in result.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return result.eval()


def pair(size: int = 20, draft_size: int = 12, gemma: bool = False, **variant: Any) -> Any:
    model = target(size, gemma)
    drafter = Eagle3Drafter(network(size, draft_size, **variant), LAYERS)
    affinity = Affinity.intersection(Vocabulary(list(range(draft_size)), size))
    return HuggingFaceModel(model, state_layers=drafter.state_layers), drafter, affinity


EAGLE2 = {"eagle2": True, "fc_bias": True}


def test_nodes_are_read_after_their_parents() -> None:
    reading, drafter, _ = pair()
    reading.reset(1)
    read = reading.feed([[1, 2, 3]], [1]).states
    drafter.reset(1)
    drafter.observe([read[0][:-1]])
    drafter.feed([[1, 2, 3]], [1])
    with pytest.raises(ValueError, match="needs each parent to be read before its children"):
        drafter.feed_tree([[4, 5]], [2], [[-1, 0]])
    with pytest.raises(ValueError, match="needs nodes alone"):
        drafter.feed_tree([[4, 5]], [2], [[-1]])


@pytest.mark.parametrize("gemma", [False, True])
def test_eagle_2_reads_the_last_state_after_the_last_norm(gemma: bool) -> None:
    reading, drafter, _ = pair(gemma=gemma, **EAGLE2)
    model, ids = reading.model, torch.tensor([[5, 3, 1]])
    reading.reset(1)
    (states,) = reading.feed(ids.tolist(), [3]).states
    with torch.no_grad():
        expected, before = model.base_model(ids).last_hidden_state[0], []
        handle = model.base_model.norm.register_forward_pre_hook(lambda _, x: before.append(x[0]))
        model(ids)
    handle.remove()
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(drafter.network.fuse(states), expected)
    assert not torch.allclose(states, before[0][0], atol=0.1)


def test_another_head_takes_the_place_of_the_network_s_own() -> None:
    _, drafter, _ = pair(draft_size=12)
    rows, bias = drafter.network.lm_head.weight.detach()[[3, 5]], torch.tensor([0.5, -2.0])
    smaller = Eagle3Drafter(drafter.network, LAYERS, head=rows, head_bias=bias)
    for each in (drafter, smaller):
        each.reset(1)
        each.observe([torch.ones(2, 3 * WIDTH)])
    expected = drafter.feed([[5, 3, 1]], [1])
    logits, hidden, _ = smaller.feed([[5, 3, 1]], [1])
    assert smaller.vocabulary_size == 2
    torch.testing.assert_close(logits, expected.logits[..., [3, 5]] + bias)
    torch.testing.assert_close(hidden, expected.hidden)
    for wrong in ({"head": rows[:, :3]}, {"head_bias": bias}):
        with pytest.raises(ValueError, match="needs"):
            Eagle3Drafter(drafter.network, LAYERS, **wrong)


def test_a_target_that_keeps_its_states_to_itself_is_refused() -> None:
    reading, drafter, affinity = pair()
    decoder = SpeculativeDecoder(HuggingFaceModel(reading.model), drafter, affinity)
    with pytest.raises(ValueError, match="state_layers"):
        decoder.generate([[1, 2]], max_new_tokens=3)


def test_tokens_without_a_state_before_them_are_refused() -> None:
    _, drafter, _ = pair()
    drafter.reset(1)
    with pytest.raises(ValueError, match="keep is more than the tokens with a state"):
        drafter.feed([[5]], [1])
    with pytest.raises(ValueError, match="states are known of 0"):
        drafter.feed([[5, 3]], [1])
    drafter.observe([torch.zeros(2, 3 * WIDTH)])
    drafter.feed([[5, 3, 1]], [1])
    with pytest.raises(ValueError, match="feed drafts one by one"):
        drafter.feed([[5, 3]], [1])
    with pytest.raises(ValueError, match="states of 2 sequences; needs 1"):
        drafter.observe([torch.zeros(1, 3 * WIDTH)] * 2)


@pytest.mark.parametrize("lengths", [[3, 3], [3, 5]], ids=["equal", "ragged"])
def test_a_state_that_is_handed_on_keeps_no_others_alive(lengths: list[int]) -> None:
    """Of a long prompt they are hundreds for each sequence."""
    _, drafter, _ = pair()
    drafter.reset(2)
    drafter.observe([torch.randn(length - 1, 3 * WIDTH) for length in lengths])
    drafter.feed([[1] * length for length in lengths], keep=[1, 1])
    assert drafter._own.untyped_storage().nbytes() == drafter._own.nbytes
