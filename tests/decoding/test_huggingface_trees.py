"""A Hugging Face model reads every branch of a tree as if it were alone, and keeps what it is told.

Also where a window slides: it is measured by positions, and a node's is its depth below the root.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", minversion="5.0")

from test_huggingface import alone  # noqa: E402
from test_trees_in_the_loop import Deep, RandomTrees  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from rdk_cuda import Affinity, Vocabulary  # noqa: E402
from rdk_cuda.decoding import DrafterChain, DrafterTree, Proposal, SpeculativeDecoder, Step  # noqa: E402
from rdk_cuda.decoding.generation import Batch  # noqa: E402
from rdk_cuda.decoding.trees import branch  # noqa: E402
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel, slot_cache  # noqa: E402
from tests.architectures import CONTEXT, SIZE, near, tiny  # noqa: E402

KINDS = [("llama", "sdpa"), ("llama", "eager"), ("mistral", "sdpa"), ("gemma3", "eager")]
KINDS += [("gpt-oss", "eager"), ("gpt2", "sdpa")]
PROMPTS = [[5, 3, 1, 2], [7], [8, 1, 4, 4, 9, 8, 1, 4, 4, 9, 2, 3, 5]]


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("pieces", [512, 3])
@pytest.mark.parametrize(("name", "attention"), KINDS)
def test_a_tree_is_read_as_each_of_its_branches(
    name: str, attention: str, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one pass or node by node, with tokens before it in the same pass; then a branch stays."""
    monkeypatch.setattr(slot_cache, "_PREFILL_COLUMNS", pieces)
    model, rng = tiny(name, attention=attention), random.Random(3)
    wrapped = HuggingFaceModel(model)
    wrapped.reset(3)
    contexts: list[list[int]] = [[rng.randrange(SIZE) for _ in range(n)] for n in (14, 1, 5)]
    wrapped.feed(contexts, [0, 0, 1])
    for at_once in (True, False, True, True):
        new = [[rng.randrange(SIZE) for _ in range(n)] for n in (1, 3, 2)]
        sizes = [5, 0, 7]
        nodes = [[rng.randrange(SIZE) for _ in range(n)] for n in sizes]
        parents = [[rng.randint(-1, node - 1) for node in range(n)] for n in sizes]
        contexts = [context + more for context, more in zip(contexts, new, strict=True)]
        if at_once:
            tokens = [a + b for a, b in zip(new, nodes, strict=True)]
            logits = wrapped.feed_tree(tokens, [n + 1 for n in sizes], parents).logits
        else:
            rows = [wrapped.feed(new, [1, 1, 1]).logits]
            for node in range(7):
                one = [own[node : node + 1] for own in nodes]
                known = [own[: node + 1] for own in parents]
                rows.append(wrapped.feed_tree(one, list(map(len, one)), known).logits)
            logits = torch.cat(rows, 1)
        for b, context in enumerate(contexts):
            for node in range(-1, sizes[b]):
                path = [nodes[b][each] for each in branch(parents[b], node)]
                assert_close(logits[b, node + 1], alone(model, context + path)[-1])
        paths = [branch(parents[0], 4), [], branch(parents[2], rng.randrange(7))[:-1]]
        wrapped.keep_paths(paths)
        contexts = [
            context + [nodes[b][node] for node in paths[b]] for b, context in enumerate(contexts)
        ]
        assert wrapped.lengths == [len(context) for context in contexts]
    wrapped.feed_tree([[1, 2], [1], [1]], [2, 1, 1], [[-1, -1], [-1], [-1]])
    wrapped.rollback([len(contexts[0]) - 3, 99, 99])  # nothing of the tree stays
    contexts[0] = contexts[0][:-3]
    assert wrapped.lengths == [len(context) for context in contexts]
    logits = wrapped.feed([[3], [4], [5]], [1, 1, 1]).logits
    for b, context in enumerate(contexts):
        assert_close(logits[b, 0], alone(model, [*context, b + 3])[-1])


class Watched(RandomTrees):
    """Random trees in which the target's greedy token sits somewhere, and its states as it sees."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.texts: list[list[int]] = []

    def reset(self, batch_size: int) -> None:
        self.seen: list[list[Tensor]] = [[] for _ in range(batch_size)]

    def propose(self, sequences: Sequence[Any], step: Step) -> Proposal:
        random_tree = super().propose(sequences, step)
        tokens = random_tree.tokens.clone()
        for b, s in enumerate(sequences):
            tokens[b, 2] = alone(self.model, s.tokens)[-1].argmax()
        parents = random_tree.parents.clone()
        parents[:, 2] = -1
        self.texts = [s.context for s in sequences]
        return Proposal.tree(tokens, parents, step)

    def observe(self, states: Any) -> None:
        for seen, new in zip(self.seen, states, strict=True):
            seen.append(new)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_the_text_is_the_target_s_own_and_states_are_those_of_accepted_nodes(name: str) -> None:
    model = tiny(name)
    target = HuggingFaceModel(model, state_layers=(1,))
    proposer = Watched(model)
    decoder = SpeculativeDecoder(target, proposer=proposer)
    result = decoder.generate(PROMPTS, max_new_tokens=[20, 3, 15], temperature=0)
    assert sum(result.statistics.accepted) > 8
    for b, (prompt, new) in enumerate(zip(PROMPTS, result.tokens, strict=True)):
        text = [*prompt, *new]
        choices = alone(model, text).argmax(1).tolist()
        assert new == choices[len(prompt) - 1 : -1]
        with torch.no_grad():
            known = model(torch.tensor([text]), output_hidden_states=True).hidden_states[1][0]
        states = torch.cat(proposer.seen[b])
        assert_close(states[: len(text) - 1], known[: len(states)][: len(text) - 1])


@pytest.mark.parametrize("recent", [None, 6])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_a_drafter_s_likeliest_tree_decodes_the_target_s_text(
    name: str, recent: int | None
) -> None:
    model = tiny(name)
    drafter = near(model, 0.05)
    head = 6 * drafter.get_output_embeddings().weight.detach()  # more certain: deeper trees
    proposer = DrafterTree(
        HuggingFaceModel(drafter, head=head, recent=recent),
        Affinity.intersection(Vocabulary.identity(SIZE)),
        nodes=6,
    )
    decoder = SpeculativeDecoder(HuggingFaceModel(model), proposer=proposer)
    result = decoder.generate(PROMPTS, max_new_tokens=20, temperature=0)
    alone_ = SpeculativeDecoder(HuggingFaceModel(model), draft_length=0)
    assert result.tokens == alone_.generate(PROMPTS, max_new_tokens=20, temperature=0).tokens
    assert result.statistics.accepted[1] > 0


def test_a_greedy_tree_has_the_likeliest_nodes_of_a_drafter_that_reads_all_anew() -> None:
    """The best 7 of all, where passes and width allow it; with a pruned head."""
    model, contexts = tiny(), [[5, 3, 1, 2], [7, 8]]
    affinity = Affinity.intersection(Vocabulary(list(range(0, SIZE, 2)), SIZE))
    head = model.get_output_embeddings().weight.detach()[::2]
    proposer = DrafterTree(HuggingFaceModel(model, head=head), affinity, nodes=7, passes=7, width=7)
    proposer.reset(2)
    batch = Batch.of(contexts, 9, 0.0, 1, None, torch.device("cpu"))
    proposal = proposer.propose(batch.sequences, batch.step([9, 9]))
    for b, context in enumerate(contexts):
        tokens, parents = proposal.tokens[b].tolist(), proposal.parents[b].tolist()
        chosen = [tuple(tokens[n] for n in branch(parents, node)) for node in range(7)]
        scores: dict[tuple[int, ...], float] = {(): 0.0}
        children: dict[tuple[int, ...], float] = {}
        for path in [(), *chosen]:
            row = alone(model, [*context, *path])[-1][::2].log_softmax(0)
            scores |= {path: children.get(path, 0.0)}
            children |= {(*path, 2 * i): scores[path] + float(p) for i, p in enumerate(row)}
        assert set(chosen) == set(sorted(children, key=lambda path: -children[path])[:7])


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.5}])
def test_generate_takes_trees_deeper_than_its_room_up_to_the_context(
    options: dict[str, Any],
) -> None:
    ids = 1 + torch.arange(2 * (CONTEXT - 8)).view(2, -1) % (SIZE - 1)
    options |= {"max_new_tokens": 9, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found = tiny().generate(ids, custom_generate=Generate(Deep()), **options)
    assert torch.equal(found, tiny().generate(ids, **options))


def test_nodes_that_nobody_asks_about_and_trees_beyond_the_context_are_refused() -> None:
    wrapped = HuggingFaceModel(tiny())
    wrapped.reset(1)
    with pytest.raises(ValueError, match=r"parents\[0\] has 2 nodes, of which 0 are read"):
        wrapped.feed_tree([[1, 2, 3]], [1], [[-1, 0]])
    long = list(range(SIZE)) + list(range(CONTEXT - SIZE - 2))
    wrapped.feed([long], [0])
    bush = [-1] * 5  # no deeper than a single token
    assert wrapped.feed_tree([[1, 2, 3, 4, 5, 6]], [6], [bush]).logits.shape == (1, 6, SIZE)
    wrapped.rollback([CONTEXT - 1])
    with pytest.raises(ValueError, match="gets 99 tokens long"):
        wrapped.feed_tree([[1, 2, 3, 4]], [4], [[-1, 0, 1]])


class Calls(TorchDispatchMode):
    """How many operators are called outside of a model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.calls, self.inside = 0, False
        model.register_forward_pre_hook(lambda *_: setattr(self, "inside", True))
        model.register_forward_hook(lambda *_: setattr(self, "inside", False))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += not self.inside
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kind", "most"), [(DrafterChain, 18), (DrafterTree, 30)])
def test_a_place_of_a_chain_and_a_level_of_a_tree_call_few_operators(kind: Any, most: int) -> None:
    """Beside the drafter's pass, masks and positions included: a count, which no load changes."""
    model, places = tiny("llama"), 4
    options: dict[str, Any] = {"nodes": 8, "passes": places} if kind is DrafterTree else {}
    vocabulary = Vocabulary.identity(SIZE)
    proposer = kind(HuggingFaceModel(model), Affinity.intersection(vocabulary), **options)
    proposer.reset(2)
    batch = Batch.of([[5, 3], [7]], 20, 1.0, [1, 2], None, torch.device("cpu"))
    with Calls(model) as called:
        proposer.propose(batch.sequences, batch.step([20, 20]))
    assert called.calls <= most * places, called.calls
