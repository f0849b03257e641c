"""SGLang's layout of a chain in and out; between them what `rdk_cuda.verify` decides."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rdk_cuda.integrations.sglang import ChainVerified, verify_chain

from .engine import K, Request, Running

TOP_K_ALL = 1 << 30  # SGLang's "every token"

# A chain has the same number of nodes in every request; those of fewer drafts are filled up.
REQUESTS = (
    Request("drafts all it can", slot=3, newest=17, temperature=0.9, seed=11, drafts=3),
    Request("is greedy", slot=5, newest=0, temperature=0.0, seed=12, drafts=3),
    Request("was filled up", slot=1, newest=2**33, temperature=0.7, seed=13, drafts=3, filled_up=2),
    Request("drafted nothing", slot=0, newest=5, temperature=1.0, seed=14, drafts=3, filled_up=3),
    Request("drafts too", slot=7, newest=30, temperature=1.1, seed=15, drafts=3),
)


def places(requests: int, nodes: int) -> Tensor:
    """`retrieve_index` of chains."""
    return torch.arange(requests * nodes).view(requests, nodes)


def verified_of(running: Running, **options: object) -> ChainVerified:
    requests = len(running.requests)
    greedy = running.temperature == 0
    arguments: dict[str, object] = {
        "retrieve_index": places(requests, K + 1),
        "req_pool_indices": running.slots,
    } | options
    return verify_chain(
        running.target_logits.flatten(0, 1),
        torch.cat([torch.full((requests, 1), 5), running.drafted], 1),
        seq_lens=running.newest,
        temperatures=running.temperature.where(~greedy, 1.0)[:, None],
        top_ks=torch.where(greedy, 1, TOP_K_ALL).int(),
        sampling_seed=running.seeds,
        arena=running.arena,
        **arguments,  # type: ignore[arg-type]
    )


def tokens_of(verified: ChainVerified) -> list[list[int]]:
    """As SGLang reads them: `predict` at the places of `accept_index`, up to the first -1."""
    return [
        [int(verified.predict[place]) for place in row if place != -1]
        for row in verified.accept_index.tolist()
    ]


@pytest.mark.parametrize("dynamic", [False, True])
def test_it_decides_what_verify_decides(dynamic: bool) -> None:
    running = Running(REQUESTS, dynamic=dynamic)
    verified = verified_of(running)
    assert {tensor.dtype for tensor in verified} == {torch.int32}
    assert tokens_of(verified) == running.expected()
    others = verified_of(running, req_pool_indices=running.slots.roll(1))
    assert tokens_of(others) != running.expected()  # the control
    by_block = verified_of(running, method="block")
    assert tokens_of(by_block) == running.expected(method="block") != running.expected()
    accepted = [running.directly(b)[1] for b in range(len(REQUESTS))]
    assert verified.num_correct_drafts.tolist() == accepted
    assert 0 < sum(accepted) < 9
    nodes = places(len(REQUESTS), K + 1)
    for row, own, n in zip(verified.accept_index.tolist(), nodes.tolist(), accepted, strict=True):
        assert row == own[: n + 1] + [-1] * (K - n)


def test_drafts_without_a_distribution() -> None:
    running = Running(REQUESTS)
    expected = running.expected(distribution=False)
    assert tokens_of(verified_of(running, req_pool_indices=None)) == expected
    assert expected != running.expected()


def test_places_are_those_of_retrieve_index_and_others_are_not_written() -> None:
    running = Running(REQUESTS)
    backwards = places(len(REQUESTS), K + 1).flip(0)
    verified = verified_of(running, retrieve_index=backwards)
    assert tokens_of(verified) == running.expected()
    assert verified.accept_index[0, 0] == backwards[0, 0]
    index = places(len(REQUESTS), K + 1)
    index[1], index[2] = 10**6, -7
    expected = running.expected()
    expected[1] = expected[2] = []
    verified = verified_of(running, retrieve_index=index)
    assert tokens_of(verified) == expected
    decided = verified.accept_index[verified.accept_index >= 0].long()
    assert not verified.predict.index_fill(0, decided, 0).any()


def test_a_batch_may_be_empty() -> None:
    arena = Running(REQUESTS).arena
    none = torch.zeros(0, dtype=torch.int64)
    rows, logits = none.view(0, K + 1), torch.zeros(0, arena.affinity.target_size)
    given = logits, rows, rows, none, torch.zeros(0, 1), none, none
    verified = verify_chain(*given, arena, req_pool_indices=none)
    assert [list(tensor.shape) for tensor in verified] == [[0], [0, K + 1], [0]]


def test_a_target_row_without_distribution_gives_no_token() -> None:
    running = Running(REQUESTS)
    running.target_logits[4, 0] = float("nan")
    verified = verified_of(running)
    assert tokens_of(verified)[4] == []
    assert tokens_of(verified)[:4] == running.expected()[:4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"retrieve_index": places(5, 3)},
            r"retrieve_index has shape \[5, 3\] .*; needs integers \[5, 4\]",
        ),
        (
            {"req_pool_indices": places(1, 2)[0]},
            r"draft_rows has shape \[6\], but needs \[15\]",
        ),
    ],
)
def test_it_names_what_does_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, RuntimeError), match=rf"verify(_chain)?: {message}"):
        verified_of(Running(REQUESTS), **options)
