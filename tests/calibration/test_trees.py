"""What a tree is expected to gain, on a recording, where acceptance is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rdk_cuda import redistribute
from rdk_cuda.calibration import Samples
from rdk_cuda.decoding.trees import grown_alike
from rdk_cuda.recipes.stages import tree
from rdk_cuda.recipes.stages.tree import ExpectedTree, expected_tree
from tests.calibration.test_lengths import HEAD, PRUNED, samples

HERE = PRUNED, (HEAD, None)


def expected(own: Samples, temperature: float = 1.0) -> ExpectedTree:
    found = expected_tree(own, *HERE, temperature, draft_cost=0.1)
    assert found is not None
    return found


def test_a_tree_by_hand() -> None:
    """Three levels of a fixed child and a drawn one; of the second level both are read."""
    levels = [([0.5, 0.0], [0.6, 0.0], 0.2), ([0.4, 0.0], [0.3, 0.0], 0.5)]
    first = 0.6 + 0.2
    assert grown_alike(levels[:1], 8, 2) == pytest.approx(first)
    assert grown_alike(levels, 8, 2) == pytest.approx(first + first * (0.3 + 0.5))
    # By q the fixed child is worth 0.5, the drawn one 0.7 * 0.5, and what follows the fixed one
    # 0.5 * 0.4 and 0.5 * 0.7 * 0.6.
    assert grown_alike(levels, 3, 2) == pytest.approx(first + 0.6 * 0.5)
    assert grown_alike(levels, 3, 1) == pytest.approx(first + 0.6 * 0.5)


def test_a_tree_of_drawn_nodes_alone_is_a_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    own = samples(2048, per_document=64)
    monkeypatch.setattr(tree, "FIXED_FROM", 2.0)
    monkeypatch.setattr(tree, "NODES", 4)
    chain = expected(own)
    q = redistribute(
        affinity=PRUNED.affinity,
        temperature=1.0,
        **PRUNED.columns(HERE[1], own.hidden, own.contexts),
    )
    p = torch.zeros_like(q).scatter(1, own.targets.long(), own.target_probs(1.0))
    rate = torch.minimum(p, q).sum(1).double().view(-1, 64).unfold(1, 4, 1).flatten(0, 1)
    whole = float(rate.cumprod(1).sum(1).mean())
    assert chain.accepted == pytest.approx(whole, rel=0.05)  # a part of the places
    assert chain.speed == pytest.approx((1 + chain.accepted) / 1.4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_more_nodes_are_accepted_further(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, found = samples(800), []
    for nodes in (2, 4, 8):
        monkeypatch.setattr(tree, "NODES", nodes)
        found.append(expected(own, temperature).accepted)
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_no_successive_samples_no_expectation() -> None:
    own = samples(800)
    assert (
        expected_tree(replace(own, documents=torch.arange(800)), *HERE, 1.0, draft_cost=0.1) is None
    )
    assert expected_tree(samples(3), *HERE, 1.0, draft_cost=0.1) is None
