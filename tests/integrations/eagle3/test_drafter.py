"""Drafters on the target's own states: what they compute, and what the decoder makes of it."""

from typing import Any

import pytest
import torch
from table_model import chi_square, continuations, joint_of, judge_by_another_q
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder
from rdk_cuda.decoding.trees import branch
from rdk_cuda.integrations.eagle3 import Eagle3Config, Eagle3Drafter, Eagle3Network
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from tests.tiny_llamas import llama, shape

WIDTH, LAYERS = 16, 8
PROMPTS = [[5, 3, 1, 0, 2], [4], [1, 2, 3, 4, 5, 0, 1, 2, 3]]


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


@torch.no_grad()
def from_scratch(model: Any, drafter: Eagle3Drafter, known: list[int], drafted: list[int]) -> Any:
    """The logits after `known + drafted`, of which the target has read all of `known` but one."""
    ids = torch.tensor([known])
    states = model(ids[:, :-1], output_hidden_states=True).hidden_states
    states = torch.cat([states[at] for at in drafter.state_layers], -1)
    tokens, states = ids[:, 1:], drafter.network.fuse(states)
    for token in [*drafted, None]:
        hidden = drafter.network(tokens, states)
        if token is not None:
            tokens = torch.cat([tokens, torch.tensor([[token]])], 1)
            states = torch.cat([states, drafter.network.handed_on(hidden[:, -1:])], 1)
    return drafter.network.logits(hidden[0, -1])


class Checked(Eagle3Drafter):
    """Compares each row of logits with those of the sequence read at once."""

    model: Any
    compared = 0

    def reset(self, batch_size: int) -> None:
        super().reset(batch_size)
        self.tokens: list[list[int]] = [[] for _ in range(batch_size)]

    def feed(self, tokens: Any, keep: Any) -> Any:
        old = zip(self.tokens, self.lengths, tokens, strict=True)
        self.tokens = [before[:count] + list(new) for before, count, new in old]
        output = super().feed(tokens, keep)
        for b, context in enumerate(self.tokens):
            if keep[b]:
                known = self.observed[b] + 1
                expected = from_scratch(self.model, self, context[:known], context[known:])
                torch.testing.assert_close(output.logits[b, 0], expected, rtol=1e-4, atol=1e-4)
                self.compared += 1
        self.nodes: list[list[int]] = [[] for _ in tokens]
        return output

    def feed_tree(self, tokens: Any, keep: Any, parents: Any) -> Any:
        output = super().feed_tree(tokens, keep, parents)
        for b, (context, nodes, new) in enumerate(
            zip(self.tokens, self.nodes, tokens, strict=True)
        ):
            for place, token in enumerate(new):
                nodes.append(token)
                path = [nodes[node] for node in branch(parents[b], len(nodes) - 1)]
                expected = from_scratch(self.model, self, context, path)
                torch.testing.assert_close(output.logits[b, place], expected, rtol=1e-4, atol=1e-4)
                self.compared += 1
        return output


EAGLE2 = {"eagle2": True, "fc_bias": True}


@pytest.mark.parametrize("variant", [{}, {"norm_output": True, "fc_norm": True}, EAGLE2])
def test_every_draft_is_made_of_what_the_sequence_read_at_once_shows(
    variant: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.slot_cache._PREFILL_COLUMNS", 3)
    reading, drafter, affinity = pair(**variant)
    checked = Checked(drafter.network, LAYERS)
    checked.model = reading.model
    decoder = SpeculativeDecoder(reading, checked, affinity, draft_length=3)
    statistics = decoder.generate(PROMPTS, max_new_tokens=12, seeds=[1, 2, 3]).statistics
    assert 0 < sum(statistics.accepted) < sum(statistics.drafted)
    assert checked.compared > 40


@pytest.mark.parametrize("variant", [{}, {"norm_output": True, "fc_norm": True}, EAGLE2])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_node_of_a_tree_is_what_its_branch_read_at_once_shows(
    temperature: float, variant: dict[str, Any]
) -> None:
    reading, drafter, affinity = pair(**variant)
    checked = Checked(drafter.network, LAYERS)
    checked.model = reading.model
    tree = DrafterTree(checked, affinity, nodes=7, passes=3, width=3)
    decoder = SpeculativeDecoder(reading, proposer=tree)
    settings: dict[str, Any] = {"max_new_tokens": 12, "seeds": [1, 2, 3]}
    result = decoder.generate(PROMPTS, temperature=temperature, **settings)
    assert sum(result.statistics.accepted) > 0
    assert checked.compared > 60
    if temperature == 0:
        alone = SpeculativeDecoder(HuggingFaceModel(reading.model), draft_length=0)
        assert result.tokens == alone.generate(PROMPTS, temperature=0, **settings).tokens


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


@pytest.mark.parametrize("variant", [{}, EAGLE2])
@pytest.mark.parametrize("gemma", [False, True])
def test_greedy_output_is_the_target_s_own(gemma: bool, variant: dict[str, Any]) -> None:
    reading, drafter, affinity = pair(gemma=gemma, **variant)
    settings: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0}
    alone = SpeculativeDecoder(HuggingFaceModel(reading.model), draft_length=0)
    expected = alone.generate(PROMPTS, **settings).tokens
    for draft_length in (1, 4):
        decoder = SpeculativeDecoder(reading, drafter, affinity, draft_length=draft_length)
        assert decoder.generate(PROMPTS, **settings).tokens == expected


@pytest.mark.parametrize("variant", [{}, EAGLE2])
def test_generate_takes_it(variant: dict[str, Any]) -> None:
    reading, drafter, affinity = pair(**variant)
    ids = torch.tensor([[5, 3, 1, 0, 2], [4, 4, 4, 4, 4]])
    settings: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 9}
    alone = reading.model.generate(ids, **settings)
    tree = DrafterTree(drafter, affinity, nodes=5, passes=2, width=2)
    for generate in (Generate(drafter, affinity, draft_length=3), Generate(tree)):
        drafted = reading.model.generate(ids, **settings, custom_generate=generate)
        assert torch.equal(drafted, alone)
        assert sum(generate.statistics.drafted) > 0


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


def p_value(samples: int = 6_000) -> float:
    """Chi-square of two tokens; fixed seeds. A right decoder fails `> 1e-4` once in 10,000."""
    reading, drafter, affinity = pair(size=6, draft_size=3)
    decoder = SpeculativeDecoder(reading, drafter, affinity, draft_length=2)

    found = continuations(lambda: decoder, [2, 4], 3, samples)
    return chi_square(found, joint_of(reading.model, [2, 4], 3))


def test_samples_have_the_target_s_distribution() -> None:
    assert p_value() > 1e-4


def test_control_drafts_judged_by_another_q_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge_by_another_q(monkeypatch)
    assert p_value() < 1e-6


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
