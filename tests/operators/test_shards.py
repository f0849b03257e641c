"""`rdk_cuda.shards.verify` in processes: the tokens of one device, bytes, and errors."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed

import rdk_cuda
from rdk_cuda import shards
from rdk_cuda.affinity import Affinity
from rdk_cuda.functional import Draft
from tests import generators
from tests.operators.gloo_ranks import columns_of, last_rank_dies, start

NOT_HERE = 2**63 - 1


def drafted(
    affinity: Affinity, logits: Tensor, seed: int = 5, **options: Any
) -> tuple[Draft, Tensor]:
    """A draft, and a target that is a noisy copy of what it was drawn from."""
    batch, length, _ = logits.shape
    draft = rdk_cuda.draft(logits, affinity, seeds=seed, positions=9, **options)
    q = rdk_cuda.redistribute(
        logits, affinity, dynamic_tokens=draft.dynamic_tokens, dynamic_logits=draft.dynamic_logits
    )
    noise = generators.logits(batch * (length + 1), affinity.target_size, 77).unflatten(
        0, (batch, length + 1)
    )
    target = noise * 0.5
    target[:, :length] += 0.7 * q.clamp(min=0.1 / affinity.target_size).log()
    return draft, target


def cases() -> dict[str, dict[str, Any]]:
    """Calls of verify on whole logits, by name."""
    made: dict[str, dict[str, Any]] = {}
    for dtype in generators.DTYPES:
        affinity = generators.affinity("mixed-2", 5 * 1024 + 13)
        logits = generators.logits(18, affinity.draft_size, 3, dtype=dtype).unflatten(0, (6, 3))
        tokens = generators.dynamic_tokens(18, 9, affinity.target_size).unflatten(0, (6, 3))
        dynamic = generators.logits(18, 9, 4, dtype=dtype).unflatten(0, (6, 3))
        draft, target = drafted(affinity, logits, dynamic_tokens=tokens, dynamic_logits=dynamic)
        made[str(dtype)] = {
            "target_logits": target.to(dtype),
            "draft": draft,
            "affinity": affinity,
            "temperature": torch.tensor([0.8, 1.0, 0.0, 1.3, math.nan, 0.5]),
        }
    affinity = generators.affinity("virtual", 16 * 1024)
    logits = generators.logits(12, affinity.draft_size, 6).unflatten(0, (4, 3))
    draft, target = drafted(affinity, logits, top_k=300)
    target[2, 1, 9000] = math.nan
    target[3, 0] = -math.inf
    made["whole chunks, truncated drafts, bad rows"] = {
        "target_logits": target,
        "draft": draft,
        "affinity": affinity,
        "draft_rows": torch.tensor([[0, 1, 2], [2, -1, 0], [0, 7, 2], [-1, -1, -1]]),
    }
    identity = Affinity.intersection(rdk_cuda.Vocabulary.identity(2100))
    logits = generators.logits(40, 2100, 8)
    logits[:, 5] = logits.logsumexp(1) + math.log(0.03)
    target = torch.stack([logits, generators.logits(40, 2100, 9)], 1)
    target[:, 0, 5] = -math.inf
    draft = rdk_cuda.draft(logits[:, None], identity, seeds=1, positions=0)
    object.__setattr__(draft, "tokens", torch.full((40, 1), 5))
    made["direct passes"] = {"target_logits": target, "draft": draft, "affinity": identity}
    copied = Draft.without_distribution(torch.tensor([[7, 2, -1]] * 5), seeds=3, positions=4)
    flat = torch.zeros(5, 4, 2100)
    flat[:, 0, 7] = 20.0
    made["fixed drafts"] = {"target_logits": flat, "draft": copied, "affinity": identity}
    return made


def verifies_as_on_one_device(rank: int, ranks: int) -> dict[str, Any]:
    """Whether each case has the same tokens, with as little padding as can be, and with more."""
    same: dict[str, Any] = {}
    for name, call in cases().items():
        expected = rdk_cuda.verify(**call)
        for more in (0, 64):
            columns = columns_of(rank, ranks, call["target_logits"], more)
            with mock.patch.object(
                shards.distributed, "all_gather", wraps=distributed.all_gather
            ) as gathers:
                found = shards.verify(**{**call, "target_logits": columns})
            equal = all(map(torch.equal, found[:2], expected[:2]))
            same[f"{name}, {more}"] = equal, gathers.call_count, int(expected[1].sum())
    return same


@pytest.mark.parametrize(
    "ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.ci) for ranks in (2, 4, 8))]
)
def test_any_number_of_ranks_has_the_tokens_of_one_device(ranks: int, tmp_path: Path) -> None:
    results = start(verifies_as_on_one_device, ranks, tmp_path)
    assert all(isinstance(result, dict) for result in results), results
    for result in results:
        assert len(result) == 2 * len(cases())
        assert {name for name, (equal, _, _) in result.items() if not equal} == set()
        assert result == results[0]
    gathers = {name: count for name, (_, count, _) in results[0].items()}
    assert gathers["direct passes, 0"] == gathers["direct passes, 64"] == 2
    assert gathers["fixed drafts, 0"] == 1  # on a CPU the last round is made where it is needed
    assert sum(accepted for _, _, accepted in results[0].values()) > 20


def another_seed_than_the_others(rank: int, ranks: int) -> bool:
    call = cases()["torch.float32"]
    target = call["target_logits"].clone()
    if rank == 1:
        target[..., : target.shape[-1] // 2] -= 1.0
    target[..., target.shape[-1] // 2 :] += 3.0 * rank
    columns = columns_of(rank, ranks, target)
    found = shards.verify(**{**call, "target_logits": columns})
    return torch.equal(found.tokens, rdk_cuda.verify(**call).tokens)


def test_ranks_with_other_logits_have_other_tokens(tmp_path: Path) -> None:
    """A negative control."""
    assert start(another_seed_than_the_others, 2, tmp_path) == [False, False]


def test_a_rank_that_dies_is_an_error_on_all_within_the_timeout(tmp_path: Path) -> None:
    *told, dead = start(last_rank_dies, 3, tmp_path, timeout=5.0)
    assert dead is None
    for each in told:
        found = re.match(r"RuntimeError after ([\d.]+) s", each)
        assert found, each
        assert float(found[1]) < 10


def bytes_given(rank: int, ranks: int) -> tuple[int, int]:
    """In one call of two sequences, and what a gathering of logits would take."""
    affinity = Affinity.intersection(rdk_cuda.Vocabulary.identity(128_256))
    copied = Draft.without_distribution(torch.tensor([[7, 2, 5]] * 2), seeds=3, positions=4)
    logits = generators.logits(8, 128_256, dtype=torch.bfloat16).unflatten(0, (2, 4))
    columns = columns_of(rank, ranks, logits)
    given = 0

    def counting(function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal given
            tensors = [a for a in args if isinstance(a, Tensor)]
            given += tensors[-1].nbytes  # the input comes last
            return function(*args, **kwargs)

        return counted

    names = ("all_gather", "all_reduce", "all_to_all_single")
    counted = {name: counting(getattr(distributed, name)) for name in names}
    with mock.patch.multiple(shards.distributed, **counted):
        shards.verify(columns, copied, affinity)
    return given, columns.nbytes


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.ci)])
def test_it_gives_less_than_a_twentieth_of_the_bytes_of_gathering(
    ranks: int, tmp_path: Path
) -> None:
    for given, instead in start(bytes_given, ranks, tmp_path):
        assert given * 20 < instead


@pytest.fixture
def alone(tmp_path: Path) -> Any:
    store = distributed.FileStore(str(tmp_path / "group"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


OPTIONS: dict[str, Any] = {
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.1,
    "allowed": torch.full((6, 4, 161), 0x5A5A5A5A, dtype=torch.int32),
    "logprobs": "raw",
    "method": "block",
}


def gathers_for_options(rank: int, ranks: int) -> dict[str, tuple[bool, bool]]:
    """Whether all is as on whole logits, and other than without the option."""
    call = cases()["torch.bfloat16"]
    columns = columns_of(rank, ranks, call["target_logits"], 64)
    without = rdk_cuda.verify(**call)
    same = {}
    for name, value in OPTIONS.items():
        found = shards.verify(**{**call, "target_logits": columns}, **{name: value})
        expected = rdk_cuda.verify(**call, **{name: value})
        equal = all(
            torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(found, expected, strict=True)
        )
        same[name] = equal, not all(map(torch.equal, expected, without))
    return same


def test_options_that_need_whole_rows_decide_as_on_one_device(tmp_path: Path) -> None:
    for result in start(gathers_for_options, 3, tmp_path):
        assert result == dict.fromkeys(OPTIONS, (True, True))


@pytest.mark.usefixtures("alone")
def test_bad_calls_are_refused_by_name() -> None:
    call = cases()["torch.float32"]
    shards.verify(**call, method="token", top_k=None)
    with pytest.raises(ValueError, match="top_k is -1"):
        shards.verify(**call, top_k=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'top_kk'"):
        shards.verify(**call, top_kk=None)
    with pytest.raises(ValueError, match=r"has 5000 columns on each of 1 ranks.*V_t = 5133"):
        shards.verify(**{**call, "target_logits": call["target_logits"][..., :5000]})
    with pytest.raises(ValueError, match="target_logits has shape"):
        shards.verify(**{**call, "target_logits": call["target_logits"][0]})
    draft = call["draft"]
    object.__setattr__(draft, "stats", None)
    with pytest.raises(ValueError, match="draft has no stats"):
        shards.verify(**call)


def test_without_a_group_it_says_what_to_call() -> None:
    with pytest.raises(ValueError, match="init_process_group first"):
        shards.verify(**cases()["torch.float32"])


@pytest.mark.usefixtures("alone")
def test_a_batch_of_no_sequences_has_no_tokens() -> None:
    affinity = Affinity.intersection(rdk_cuda.Vocabulary.identity(2100))
    nothing = Draft.without_distribution(torch.empty(0, 3, dtype=torch.int64), seeds=1, positions=0)
    assert shards.verify(torch.zeros(0, 4, 2100), nothing, affinity).tokens.shape == (0, 4)
