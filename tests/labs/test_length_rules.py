"""They hold what the core's rules promise, in its own tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import test_every_proposer
import test_lengths
import torch
from lossless import CONDITIONS, p_value
from test_parts import FALSE_ALARM, chain

from rdk_cuda.decoding import SpeculativeDecoder
from rdk_cuda.integrations.block_drafters import read_block_drafter
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.length_rules import Confidence, ConfidentDrafter, EntropyBound, OwnConfidence

from ..integrations.block_drafters.test_block_drafters import PROMPTS, WIDTH, publish, target

RULES: dict[str, Callable[..., object]] = {
    "confidence": Confidence(0.4),
    "entropy bound": EntropyBound(0.5),
}


def check(name: str, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_lengths.LENGTHS, name, RULES[name])
    proposer = partial(chain, length=RULES[name], draft_length=4)
    monkeypatch.setitem(test_every_proposer.PROPOSERS, name, proposer)
    for temperature, method in ((0.0, "token"), (1.0, "block")):
        test_lengths.test_drafts_end_early(name, temperature)
        test_every_proposer.test_a_sequence_is_the_same_alone_and_in_a_batch(name, method)
        assert p_value(proposer, method, CONDITIONS["as it is"], samples) > FALSE_ALARM


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_lossless_and_a_draft_ends_alone_as_in_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(name, 40_000, monkeypatch)


def test_a_drafter_s_own_confidence_ends_drafts(tmp_path: Path) -> None:
    publish(tmp_path, "dspark")
    network = read_block_drafter(tmp_path, target())
    drafter = ConfidentDrafter(network).read_confidence(tmp_path)
    model = HuggingFaceModel(target(), state_layers=drafter.state_layers)
    drafted = []
    for least in (0.0, 0.1, 1.1):
        length = OwnConfidence(drafter, least)
        decoder = SpeculativeDecoder(model, drafter, draft_length=4, length=length)
        result = decoder.generate(PROMPTS, max_new_tokens=16, seeds=[1, 2, 3])
        drafted.append(result.statistics.drafted)
    assert drafted[2][1:] == [0, 0, 0]
    assert sum(drafted[0]) >= sum(drafted[1]) > sum(drafted[2])
    model.reset(2)
    states = model.feed([[5, 3, 1], [2, 4, 6]], [1, 1]).states
    drafter.reset(2)
    drafter.observe(states)
    drafter.feed([[5, 3, 1, 2], [2, 4, 6, 1]], [1, 1])
    before = torch.tensor([[2, 7], [1, 8]])
    first_two = drafter.confidences(drafter.block[:, :2], before).prod(1)
    seen: Any = SimpleNamespace(places=[SimpleNamespace(tokens=before[:, 1:])])
    between = float(first_two.mean())
    assert torch.equal(OwnConfidence(drafter, between)(seen), first_two >= between)
    assert not bool(OwnConfidence(drafter, 0.0)(SimpleNamespace(places=4 * seen.places)).any())
    block = torch.randn(2, WIDTH)
    found = drafter.confidences(block, torch.tensor([3, 5]))
    states = torch.cat([block, network.markov.weight[[3, 5]]], -1)
    torch.testing.assert_close(found, (states @ drafter.weight + drafter.bias).sigmoid())
