"""What holds for every drafter on the target's states: EAGLE's, multi-token heads, and blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
import torch
from table_model import chi_square, continuations, joint_of, judge_by_another_q
from torch import Tensor
from transformers import DynamicCache

from rdk_cuda import Affinity, CombinedTokens, RecentTokens, ScreenedTokens, Vocabulary
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder, StateDrafter, TreeModel
from rdk_cuda.decoding.trees import branch
from rdk_cuda.drafter import prune_head
from rdk_cuda.integrations.block_drafters import BlockDrafter, read_block_drafter
from rdk_cuda.integrations.eagle3 import Eagle3Drafter
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.mtp import MtpDrafter
from tests.architectures import FROM_5_24

from .block_drafters import test_block_drafters as blocks
from .eagle3 import test_drafter as eagles

SIZE = 12
PROMPTS = [[5, 3, 1, 7, 2], [4], [1, 2, 3, 4, 5, 9, 1, 2, 3]]
Row = Callable[[list[int], list[int]], Tensor]


class Pair(NamedTuple):
    """A target, a drafter for it, and what makes the same drafter with another head.

    Attributes:
        row: the logits after known tokens and some that were drafted behind them, of a pass over
            all, without any cache.
    """

    target: HuggingFaceModel
    drafter: Any
    with_head: Callable[..., Any]
    row: Row

    @property
    def affinity(self) -> Affinity:
        kept = Vocabulary(range(self.drafter.vocabulary_size), self.target.vocabulary_size)
        return Affinity.intersection(kept)


def pair(model: Any, drafter: Any, with_head: Callable[..., Any], row: Any) -> Pair:
    target = HuggingFaceModel(model, state_layers=drafter.state_layers)

    @lru_cache
    def states(known: tuple[int, ...]) -> Tensor:
        hidden = model(torch.tensor([known]), output_hidden_states=True).hidden_states
        return torch.cat([hidden[at] for at in drafter.state_layers], -1)

    @torch.no_grad()
    def after(known: list[int], drafted: list[int]) -> Any:
        return row(states(tuple(known[:-1])), known, drafted)

    return Pair(target, drafter, with_head, after)


def on_itself(network: Any) -> Any:
    """Along a draft the states are the network's own."""

    def row(states: Tensor, known: list[int], drafted: list[int]) -> Tensor:
        tokens, states = torch.tensor([known[1:]]), network.fuse(states)
        for token in drafted:
            states = torch.cat([states, network.handed_on(network(tokens, states)[:, -1:])], 1)
            tokens = torch.cat([tokens, torch.tensor([[token]])], 1)
        logits: Tensor = network.logits(network(tokens, states)[0, -1])
        return logits

    return row


def in_a_block(network: Any) -> Any:
    config = network.config

    def row(states: Tensor, known: list[int], drafted: list[int]) -> Tensor:
        count = len(known) - 1
        block = torch.tensor([[known[-1], *[config.mask] * (config.block - 1)]])
        positions = torch.arange(count + config.block)[None]
        mask = torch.zeros(1, 1, config.block, count + config.block)
        hidden = network(block, states, positions, mask, DynamicCache())[0, len(drafted)]
        last = torch.tensor([*known, *drafted][-1])
        logits: Tensor = network.head @ network.with_previous(hidden, last)
        return logits

    return row


def eagle(size: int, *, gemma: bool = False, **variant: Any) -> Pair:
    """Its own head is small, but where little is to be compared."""
    network = eagles.network(size, 8 if size == SIZE else size, **variant)

    def with_head(**head: Any) -> Eagle3Drafter:
        full = network.lm_head.weight.detach(), None
        return Eagle3Drafter(network, eagles.LAYERS, full_head=full, **head)

    return pair(eagles.target(size, gemma), with_head(), with_head, on_itself(network))


def multi_token(name: str) -> Callable[[int], Pair]:
    def made(size: int) -> Pair:
        from .mtp.heads import parts

        target, network = parts(name, size)

        def with_head(**head: Any) -> MtpDrafter:
            return MtpDrafter(network, **head)

        return pair(target.model, with_head(), with_head, on_itself(network))

    return made


def block(kind: str) -> Callable[[int], Pair]:
    def made(size: int) -> Pair:
        model = blocks.target(size, 0.3 if size == SIZE else 0.25)
        with TemporaryDirectory() as folder:
            blocks.publish(Path(folder), kind, size)
            network = read_block_drafter(folder, model)

        def with_head(**head: Any) -> BlockDrafter:
            return BlockDrafter(network, **head)

        return pair(model, with_head(), with_head, in_a_block(network))

    return made


KINDS: dict[str, Callable[[int], Pair]] = {
    "EAGLE-3": eagle,
    "EAGLE-3.1": lambda size: eagle(size, norm_output=True, fc_norm=True),
    "EAGLE-2": lambda size: eagle(size, **eagles.EAGLE2),
    "EAGLE-3 of Gemma": lambda size: eagle(size, gemma=True),
    "EAGLE-2 of Gemma": lambda size: eagle(size, gemma=True, **eagles.EAGLE2),
    "dflash": block("dflash"),
    "dspark": block("dspark"),
}
EACH: list[Any] = list(KINDS)
if FROM_5_24:  # others know few of the layers
    from .mtp.heads import HEADS

    FEW = ("qwen3_5_text", "deepseek_v3", "mimo", "nemotron_h")
    KINDS |= {name: multi_token(name) for name in HEADS}
    EACH += [pytest.param(name, marks=[] if name in FEW else pytest.mark.ci) for name in HEADS]


@cache
def of(name: str, size: int = SIZE) -> Pair:
    return KINDS[name](size)


def proposing(made: Pair) -> list[dict[str, Any]]:
    """Chains, and a tree if the drafter reads one, as options of a decoder."""
    affinity = made.affinity
    chain = {"drafter": made.drafter, "affinity": affinity, "draft_length": 3}
    ways: list[dict[str, Any]] = [chain | {"draft_length": 1}, chain, chain | {"method": "block"}]
    if isinstance(made.drafter, TreeModel):
        ways.append({"proposer": DrafterTree(made.drafter, affinity, nodes=7, passes=3, width=3)})
    return ways


@pytest.mark.parametrize("name", EACH)
def test_greedy_output_is_the_target_s_own(name: str) -> None:
    """In ragged batches, and in a padded one of `generate`."""
    made, accepted = of(name), 0
    assert isinstance(made.drafter, StateDrafter)
    settings: dict[str, Any] = {"max_new_tokens": 24, "temperature": 0}
    alone = SpeculativeDecoder(made.target, draft_length=0).generate(PROMPTS, **settings).tokens
    for options in proposing(made):
        result = SpeculativeDecoder(made.target, **options).generate(PROMPTS, **settings)
        assert result.tokens == alone
        accepted += sum(result.statistics.accepted)
    assert accepted > 0 or name == "ernie4_5_moe"  # whose greedy text is one token, over and over
    ids = torch.tensor([[0, 0, 5, 3, 1], [4, 4, 4, 4, 4]])
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    options["attention_mask"] = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    expected = made.target.model.generate(ids, **options)
    ways = [Generate(made.drafter, made.affinity, draft_length=3)]
    ways += [Generate(own["proposer"]) for own in proposing(made)[3:]]
    for generate in ways:
        found = made.target.model.generate(ids, **options, custom_generate=generate)
        assert torch.equal(found, expected)
        assert sum(generate.statistics.drafted) > 0


def compared(made: Pair, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compare each row of the drafter's logits with that of a pass over all; so many, in the end.

    A drafter's first pass behind what it has observed knows the target's states of all but the
    newest token.
    """
    drafter, count = made.drafter, [0]
    texts: list[list[int]] = []
    nodes: list[list[int]] = []
    reset, feed = drafter.reset, drafter.feed

    def check(b: int, place: int, drafted: Sequence[int], output: Any) -> None:
        known = drafter.observed[b] + 1
        text, behind = texts[b][:known], [*texts[b][known:], *drafted]
        torch.testing.assert_close(
            output.logits[b, place], made.row(text, behind), rtol=1e-4, atol=1e-4
        )
        count[0] += 1

    def resetting(batch_size: int) -> None:
        reset(batch_size)
        texts[:] = [[] for _ in range(batch_size)]

    def feeding(tokens: Any, keep: Any) -> Any:
        for text, length, new in zip(texts, drafter.lengths, tokens, strict=True):
            text[length:] = new
        output = feed(tokens, keep)
        nodes[:] = [[] for _ in texts]
        for b, kept in enumerate(keep):
            if kept:
                check(b, 0, [], output)
        return output

    def feeding_tree(tokens: Any, keep: Any, parents: Any) -> Any:
        output = feed_tree(tokens, keep, parents)
        for b, new in enumerate(tokens):
            for place, token in enumerate(new):
                nodes[b].append(token)
                path = branch(parents[b], len(nodes[b]) - 1)
                check(b, place, [nodes[b][node] for node in path], output)
        return output

    monkeypatch.setattr(drafter, "reset", resetting)
    monkeypatch.setattr(drafter, "feed", feeding)
    if feed_tree := getattr(drafter, "feed_tree", None):
        monkeypatch.setattr(drafter, "feed_tree", feeding_tree)
    return count


@pytest.mark.parametrize("name", EACH)
def test_each_row_is_what_the_sequence_read_at_once_shows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of drafts and of nodes; prompts are read in pieces."""
    monkeypatch.setattr("rdk_cuda.integrations.huggingface.slot_cache._PREFILL_COLUMNS", 3)
    made = of(name)
    _, chain, _, *tree = proposing(made)
    settings: dict[str, Any] = {"max_new_tokens": 10, "seeds": [1, 2, 3]}
    for temperature, options in ((0.8, chain), *((t, each) for t in (0.8, 0) for each in tree)):
        decoder = SpeculativeDecoder(made.target, **options)
        with monkeypatch.context() as patched:
            count = compared(made, patched)
            found = decoder.generate(PROMPTS, temperature=temperature, **settings).statistics
        assert temperature == 0 or 0 < sum(found.accepted) < sum(found.drafted)
        assert count[0] > 20


# Losslessness: chi-square of three tokens. A right decoder fails `> 1e-4` once in 10,000.

FEW_TOKENS, KEPT, PROMPT = 6, Vocabulary([0, 2, 5], target_size=6), [2, 4]
FAST = {
    ("EAGLE-3", "trimmed", "token"),
    ("qwen3_5_text", "dynamic", "block"),
    ("dflash", "dynamic", "block"),
    ("dspark", "dynamic", "block"),
}
CASES = [
    pytest.param(*case, marks=[] if case in FAST else pytest.mark.night)
    for name in KINDS
    if "Gemma" not in name
    for head in ("full", "trimmed", "dynamic")
    for method in ("token", "block")
    for case in [(name, head, method)]
]


def p_value(name: str, head: str, method: Any) -> float:
    made = of(name, FEW_TOKENS)
    options: dict[str, Any] = {"draft_length": 2, "method": method}
    drafter, affinity = made.drafter, made.affinity
    if head != "full":
        affinity = Affinity.intersection(KEPT)
        weight, bias = drafter.full_head
        if head == "dynamic":
            clusters = torch.tensor([-1, 0, -1, 0, 0, -1])
            affinity = Affinity.virtual_tokens(KEPT, clusters, torch.tensor([1.0, 2, 1, 1, 3, 1]))
            pruned = weight[KEPT.pruned] @ (right := torch.linalg.svd(weight)[2][:2]).T
            screen = ScreenedTokens.from_factors(KEPT, pruned, right, width=1)
            source = CombinedTokens([RecentTokens(KEPT, width=1), screen], KEPT, width=2)
            options |= {"dynamic_tokens": source, "vocabulary": KEPT}
        small, rest = prune_head(weight, bias, KEPT, virtual=affinity)
        drafter = made.with_head(head=small, head_bias=rest)
    decoder = SpeculativeDecoder(made.target, drafter, affinity, **options)
    found = continuations(lambda: decoder, PROMPT, 3, 4_000)
    return chi_square(found, joint_of(made.target.model, PROMPT, 3))


@pytest.mark.parametrize(("name", "head", "method"), CASES)
def test_samples_have_the_target_s_distribution(
    name: str, head: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: drafts that are judged by another q are caught."""
    assert p_value(name, head, method) > 1e-4
    judge_by_another_q(monkeypatch)
    assert p_value(name, head, method) < 1e-6
