"""The study of a real model: what it counts is `sum_x min(p, q)`, at the positions that it says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from profiling.studies import gemma_screens as study
from rdk_cuda import Affinity, Vocabulary, redistribute
from rdk_cuda.evaluation import acceptance

SIZE, WIDTH = 40, 8


def test_acceptance_is_that_of_the_operator() -> None:
    random = torch.Generator().manual_seed(1)
    head = torch.randn(SIZE, WIDTH, generator=random)
    states = torch.randn(2, 2, 70, WIDTH, generator=random)
    vocabulary = Vocabulary(list(range(10)), SIZE)
    offered = torch.randint(10, SIZE, (140, 1), generator=random).int()
    offered = torch.cat([offered, torch.full((140, 1), -1).int()], dim=1)
    recorded = study.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    affinity = Affinity.intersection(vocabulary)
    target, logits = states.flatten(1, 2) @ head.T
    own, everything = logits[:, :10], Affinity.intersection(Vocabulary.identity(SIZE))
    chosen = logits.gather(1, offered.clamp_min(0).long())
    for temperature in (1.0, 0.7):
        p = (target / temperature).softmax(1)
        measured = study.measured(head, recorded, vocabulary, temperature)
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
    recorded = study.Recorded(states[0], states[1], torch.zeros(2, 70, 256))
    greedy = study.measured(head, recorded, vocabulary, 0.0)
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
