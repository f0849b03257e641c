"""The study of a real model: what it counts is `sum_x min(p, q)`, at the positions that it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from profiling.studies import gemma_acceptance
from profiling.studies import gemma_screens as study
from rdk_cuda import Affinity, Vocabulary, redistribute
from rdk_cuda.calibration import low_rank_factors
from rdk_cuda.evaluation import acceptance

SIZE, WIDTH = 40, 8


def test_acceptance_is_that_of_the_operator() -> None:
    random = torch.Generator().manual_seed(1)
    head = torch.randn(SIZE, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    vocabulary = Vocabulary(list(range(10)), SIZE)
    offered = torch.randint(10, SIZE, (140, 1), generator=random).int()
    offered = torch.cat([offered, torch.full((140, 1), -1).int()], dim=1)
    recorded = gemma_acceptance.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    affinity = Affinity.intersection(vocabulary)
    target, logits = states.flatten(1, 2) @ head.T
    own, everything = logits[:, :10], Affinity.intersection(Vocabulary.identity(SIZE))
    chosen = logits.gather(1, offered.clamp_min(0).long())
    for temperature in (1.0, 0.7):
        p = (target / temperature).softmax(1)
        measured = gemma_acceptance.measured(head, recorded, vocabulary, temperature)
        for got, q in (
            (measured.pruned, redistribute(own, affinity, temperature)),
            (measured.full, redistribute(logits, everything, temperature)),
            (
                measured.acceptance(offered),
                redistribute(
                    own, affinity, temperature, dynamic_tokens=offered, dynamic_logits=chosen
                ),
            ),
        ):
            torch.testing.assert_close(got, acceptance(p, q).view(2, 70), rtol=1e-4, atol=1e-5)


def test_greedy_acceptance_is_that_of_greedy_drafts() -> None:
    random = torch.Generator().manual_seed(4)
    head = torch.randn(SIZE, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    states[1] = states[0] + 0.5 * states[1]
    vocabulary = Vocabulary(list(range(10)), SIZE)
    offered = torch.randint(10, SIZE, (140, 8), generator=random).int()
    offered[::3, 1:] = -1
    recorded = gemma_acceptance.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    greedy = gemma_acceptance.measured(head, recorded, vocabulary, 0.0)
    target, logits = states.flatten(1, 2) @ head.T
    own = logits[:, :10]
    chosen = logits.gather(1, offered.clamp_min(0).long())
    affinity, everything = (
        Affinity.intersection(each) for each in (vocabulary, Vocabulary.identity(SIZE))
    )
    offers = {"dynamic_tokens": offered, "dynamic_logits": chosen}
    for got, q in (
        (greedy.pruned, redistribute(own, affinity, 0.0)),
        (greedy.full, redistribute(logits, everything, 0.0)),
        (greedy.acceptance(offered), redistribute(own, affinity, 0.0, **offers)),
    ):
        expected = q.argmax(1) == target.argmax(1)
        assert torch.equal(got.flatten().bool(), expected)
        assert 0 < int(expected.sum()) < len(expected)


def test_the_drafter_sees_the_last_tokens_alone_at_the_target_s_positions() -> None:
    """With a model whose state is the sum of the ids that it sees, the newest counted twice."""

    def base(ids: torch.Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=(ids.cumsum(1) + ids).double()[:, :, None])

    model: Any = SimpleNamespace(base_model=base)
    windows = torch.randint(1, 1000, (3, study.WINDOW), generator=torch.Generator().manual_seed(2))
    windows[:, 0] = 2
    _, recorded = study.record(model, windows)
    assert recorded.target.shape == (3, 64, 1)
    for ids, target, drafter, contexts in zip(
        windows, recorded.target, recorded.drafter, recorded.contexts, strict=True
    ):
        for place in range(64):
            at = int((ids.cumsum(0) + ids == int(target[place])).nonzero()[0])
            seen = study.CONTEXT + place % study.RUN
            assert int(drafter[place]) == 2 + int(ids[at - seen + 1 : at + 1].sum() + ids[at])
            context = contexts[place][contexts[place] >= 0]
            assert context.tolist() == ids[1 : at + 1][-256:].tolist()


def test_virtual_tokens_are_those_of_the_operator() -> None:
    random = torch.Generator().manual_seed(5)
    head = torch.randn(SIZE, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    vocabulary, mean_probs = Vocabulary(list(range(10)), SIZE), torch.rand(SIZE).double()
    offered = torch.randint(10, SIZE, (140, 1), generator=random).int()
    recorded = gemma_acceptance.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    target, logits = states.flatten(1, 2) @ head.T
    factors = low_rank_factors((head, None), vocabulary, torch.eye(WIDTH), WIDTH)
    for temperature in (1.0, 0.7):
        measured = gemma_acceptance.Measured(head, recorded, vocabulary, temperature)
        virtual = gemma_acceptance.VirtualTokens(
            head, vocabulary, factors, mean_probs, 4, temperature
        )
        q = redistribute(
            states[1].flatten(0, 1) @ virtual.drafter.weight.T,
            virtual.drafter.affinity,
            temperature,
            dynamic_tokens=offered,
            dynamic_logits=logits.gather(1, offered.long()),
        )
        expected = acceptance((target / temperature).softmax(1), q).view(2, 70)
        got = measured.acceptance(offered, virtual)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
        none = gemma_acceptance.with_best_offset(virtual, measured, offered)
        best = measured.acceptance(offered, none)
        assert best.mean() >= max(got.mean(), measured.acceptance(offered).mean())


def test_what_bounds_virtual_tokens_has_the_masses_and_weights_of_the_full_head() -> None:
    random = torch.Generator().manual_seed(6)
    head = torch.randn(SIZE, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    vocabulary, mean_probs = Vocabulary(list(range(10)), SIZE), torch.ones(SIZE).double()
    recorded = gemma_acceptance.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    factors = low_rank_factors((head, None), vocabulary, torch.eye(WIDTH), WIDTH)
    measured = gemma_acceptance.Measured(head, recorded, vocabulary, 0.7)

    def virtual(count: int) -> gemma_acceptance.VirtualTokens:
        return gemma_acceptance.VirtualTokens(head, vocabulary, factors, mean_probs, count, 0.7)

    rates = measured.acceptance(torch.empty(140, 0).int(), virtual(30).exactly)
    torch.testing.assert_close(rates, measured.full, rtol=1e-4, atol=1e-5)
    block, few = measured.blocks[0], virtual(3)
    jensen = few(block, block.e_pruned)
    followed = few.by_the_state(factors, WIDTH)(block, block.e_pruned)
    for cluster in range(3):
        own = few.cluster == cluster
        torch.testing.assert_close(followed[:, own].sum(1), jensen[:, own].sum(1))
        ratio = followed[:, own] / block.e_pruned[:, own]
        torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-3, atol=0)


def test_every_method_is_measured_once_and_beside_a_screen_virtual_tokens_do_not_hurt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "_LEAST_WIDTH": 1,
        "BUDGETS": (0.5, 0.9),
        "BATCHES": (1, 2),
        "VIRTUAL": 4,
        "MANY": 8,
    }.items():
        monkeypatch.setattr(study, name, value)
    random, size, width = torch.Generator().manual_seed(7), 600, 32
    head = torch.randn(size, width, generator=random)
    states = torch.randn(2, 6, 16, width, generator=random)
    states[1] = states[0] + 0.2 * states[1]
    contexts = torch.randint(size, (6, 16, 256), generator=random)
    own = gemma_acceptance.Recorded(states[0], states[1], contexts)
    counts = gemma_acceptance.successor_counts(size, contexts[:, 0].tolist())
    mean_probs = gemma_acceptance.mean_probs_at(states[0], head)
    vocabulary = Vocabulary(list(range(60)), size)
    pair = study.Pair(head, vocabulary, mean_probs, counts, own, own)
    rows = list(study.measure_pruning(pair, dissected=True))
    keys = [
        tuple((k, v) for k, v in row.items() if k not in ("recovered", "full", "pruned"))
        for row in rows
    ]
    assert len(set(keys)) == len(keys) == 3 * 9 + 2 + 2 * 12
    shares: dict[float, dict[str, float]] = {row["temperature"]: {} for row in rows}
    for row in rows:
        if row.get("batch", 1) == 1 and row.get("budget", 0.9) == 0.9:
            shares[row["temperature"]][row["method"]] = row["recovered"][0]
    for temperature, own_shares in shares.items():
        assert own_shares["all"] > 0.5
        assert ("virtual tokens" in own_shares) == (temperature > 0)
