"""Inputs of a case, and its work as calls: the operators' own and those they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda import _ops as operators

from . import eager
from .cases import PAIR, ROWS, Case

VIRTUAL = 64  # virtual tokens, of the V_d
# Standard deviation of the noise between drafter and target: p ~ q exp(noise) overlaps with q by
# about 2 Phi(-noise / 2), that is 92 % and 13 %.
NOISE = {"high": 0.2, "low": 3.0}
MOST_SETS = 8

Call = Callable[[int], object]


@dataclass(frozen=True)
class Inputs:
    """Of one call. Drafts lie in an arena, as K calls of `draft` leave them: `[K, B, ...]`."""

    draft_logits: Tensor
    dynamic: eager.Dynamic  # [K, B, C] each
    temperature: Tensor  # [B]
    step_keys: Tensor  # [B]
    positions: Tensor  # [K, B]
    tokens: Tensor  # [B, K], as draft drew them
    stats: Tensor  # [K * B, 2 + R]
    target_logits: Tensor  # [B * (K + 1), V_t]
    accepted: tuple[int, ...]  # of each sequence


@dataclass(frozen=True)
class Workload:
    """A case with several sets of inputs; a call takes the number of one.

    Attributes:
        ours: the operators.
        peers: the same work otherwise, by name. Those of `compilable` are plain functions that
            torch.compile can take, with their arguments.
        accepted: for each set of inputs, how many drafts of each sequence; empty if none.
    """

    case: Case
    affinity: Affinity | None
    sets: int
    ours: Call
    peers: dict[str, Call]
    compilable: tuple[Callable[..., object], list[tuple[Any, ...]]]
    accepted: list[tuple[int, ...]]


def build(case: Case, device: torch.device) -> Workload:
    """The inputs, always the same ones, and the calls of a case."""
    random = torch.Generator(device).manual_seed(0)
    if case.operator == "gather_logits":
        return _gather_workload(case, random)
    affinity = affinity_of(*affinity_key(case)).to(device)
    count = number_of_sets(case)
    inputs = [draw_inputs(case, affinity, random) for _ in range(count)]
    function, arguments = _eager_arguments(case, affinity, inputs)
    with_matrix = (eager.Entries.of(affinity).matrix(),)

    def sparse(index: int) -> object:
        return function(*arguments[index], *with_matrix)

    peers: dict[str, Call] = {"eager": _of(function, arguments), "sparse": sparse}
    return Workload(
        case,
        affinity,
        count,
        _ours(case, affinity, inputs),
        peers,
        (function, arguments),
        [each.accepted for each in inputs] if case.verifies else [],
    )


def number_of_sets(case: Case) -> int:
    """Acceptance differs between sequences: of small batches several sets are measured in turn."""
    return max(1, min(MOST_SETS, 32 // case.batch))


def _of(function: Callable[..., object], arguments: Sequence[tuple[Any, ...]]) -> Call:
    return lambda index: function(*arguments[index])


@lru_cache(maxsize=4)
def mean_probs(target_size: int) -> Tensor:
    """Zipf's law over tokens in random order, float64 `[V_t]`."""
    order = torch.randperm(target_size, generator=torch.Generator().manual_seed(1))
    weights = 1 / (order + 1).double()
    return weights / weights.sum()


def affinity_key(case: Case) -> tuple[str, int, int, int, int]:
    """What of a case its affinity depends on."""
    return case.sampler, case.target_size, case.draft_size, case.entries, case.rank


@lru_cache(maxsize=4)
def affinity_of(
    sampler: str, target_size: int, draft_size: int, entries: int = 0, rank: int = 0
) -> Affinity:
    """An affinity from `draft_size` drafter tokens, on the CPU; kept are the likeliest ones."""
    if draft_size == target_size:
        return Affinity.intersection(Vocabulary.identity(target_size))
    prior = mean_probs(target_size)
    if sampler != "virtual":
        vocabulary = Vocabulary.most_likely(prior, draft_size)
        if sampler == "first-order":
            return Affinity.first_order(vocabulary, prior, tau=1 / target_size)
        if sampler == ROWS:
            return affinity_of_rows(vocabulary, prior, entries, rank)
        return Affinity.intersection(vocabulary)
    vocabulary = Vocabulary.most_likely(prior, draft_size - VIRTUAL)
    random = torch.Generator().manual_seed(2)
    clusters = torch.full((target_size,), -1)
    order = torch.randperm(vocabulary.pruned.numel(), generator=random)
    clusters[vocabulary.pruned[order]] = torch.arange(order.numel()) % VIRTUAL
    return Affinity.virtual_tokens(vocabulary, clusters, prior)


def affinity_of_rows(vocabulary: Vocabulary, prior: Tensor, entries: int, rank: int) -> Affinity:
    """Rows of exactly `entries` entries, the first of them the token's own, and `rank` priors.

    A row's targets lie at the same random distances from its own token as those of every other
    row, so that no two of them meet and columns are about as long as each other.
    """
    target_size, draft_size = vocabulary.target_size, vocabulary.draft_size
    random = torch.Generator().manual_seed(3)
    distances = torch.randperm(target_size - 1, generator=random)[: entries - 1] + 1
    distances = torch.cat([distances.new_zeros(1), distances])
    targets = (vocabulary.draft_ids[:, None] + distances) % target_size
    spread = torch.full((draft_size, rank), 0.1 / max(1, rank))
    masses = 1 / torch.arange(1.0, entries + 1)
    masses *= (1 - float(spread[0].sum())) / masses.sum()
    at = torch.stack([torch.arange(draft_size).repeat_interleave(entries), targets.flatten()])
    rows = torch.sparse_coo_tensor(
        at, masses.repeat(draft_size), (draft_size, target_size), check_invariants=True
    )
    if rank == 0:
        return Affinity.from_rows(rows)
    priors = torch.stack([prior.roll(shift) for shift in range(rank)])
    return Affinity.from_rows(rows, spread=spread, prior=priors)


@lru_cache(maxsize=4)
def draft_means(
    sampler: str, target_size: int, draft_size: int, entries: int = 0, rank: int = 0
) -> Tensor:
    """Logits `[V_d]` of a drafter that follows the prior; a token has what its row stands for."""
    affinity = affinity_of(sampler, target_size, draft_size, entries, rank)
    prior = mean_probs(target_size)
    if sampler in ("first-order", ROWS):  # it keeps the likeliest, whatever their rows lead to
        return prior[Vocabulary.most_likely(prior, draft_size).draft_ids].log().float()
    mass = torch.zeros(draft_size, dtype=torch.float64)
    mass.index_add_(0, affinity.col_drafts.long(), _entry_masses(affinity, prior))
    return (mass.log() - affinity.bias).float()


def _entry_masses(affinity: Affinity, prior: Tensor) -> Tensor:
    """The prior's mass of each entry's target, as every target has one entry at most."""
    targets = torch.arange(affinity.target_size).repeat_interleave(affinity.col_offsets.diff())
    return prior[targets]


def draw_inputs(case: Case, affinity: Affinity, random: torch.Generator) -> Inputs:
    """Drafter logits around the prior's, drafts drawn from them, target logits around log q."""
    device, dtype = random.device, case.torch_dtype
    length, batch = max(1, case.draft_length), case.batch

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random, device=device)

    means = draft_means(*affinity_key(case)).to(device)
    logits = (means + 2 * normal(length, batch, case.draft_size)).to(dtype)
    dynamic: eager.Dynamic = None
    if case.columns:
        shape = (length, batch, case.columns)
        some = integers(0, case.target_size, *shape).to(torch.int32)
        dynamic = some, (means.max() - 3 + normal(*shape)).to(dtype)
    temperature = torch.ones(batch, device=device)
    step_keys = integers(-(2**62), 2**62, batch)
    positions = integers(0, 2**20, batch) + torch.arange(length, device=device)[:, None]
    drafted = [
        operators.draft(
            logits[k],
            temperature,
            step_keys,
            positions[k],
            *affinity.by_draft,
            *_of_draft(dynamic, k),
        )
        for k in range(length)
    ]
    tokens = torch.stack([each[0] for each in drafted], 1)
    stats = torch.cat([each[1] for each in drafted])
    target_logits = torch.empty(0, case.target_size, dtype=dtype, device=device)
    if case.verifies:
        q = operators.redistribute(
            logits.flatten(0, 1),
            temperature.repeat(length),
            *affinity.by_target,
            affinity.row_top,
            *_of_all(dynamic),
        ).unflatten(0, (length, batch))
        target_logits = target_like(q, NOISE[case.acceptance or "high"], random).to(dtype)
    unjudged = Inputs(
        logits, dynamic, temperature, step_keys, positions, tokens, stats,
        target_logits, ()
    )  # fmt: skip
    if not case.verifies:
        return unjudged
    accepted = operators.verify(*_verify_arguments(case, affinity, unjudged))[1]
    return replace(unjudged, accepted=tuple(accepted.tolist()))


def target_like(q: Tensor, noise: float, random: torch.Generator) -> Tensor:
    """Target logits `[B * (K + 1), V_t]` around log q `[K, B, V_t]`; the bonus row has the last q.

    A token that q lacks keeps a little mass, as the target of a pruned drafter does.
    """
    length, batch, size = q.shape
    rows = torch.empty(batch, length + 1, size, device=q.device)
    for k in range(length + 1):
        normal = torch.randn(batch, size, generator=random, device=q.device)
        rows[:, k] = q[min(k, length - 1)].clamp(min=0.02 / size).log() + noise * normal
    return rows.flatten(0, 1)


def _of_draft(dynamic: eager.Dynamic, k: int) -> tuple[Tensor, ...]:
    """Dynamic tokens and logits of the k-th draft, as further arguments."""
    return () if dynamic is None else (dynamic[0][k], dynamic[1][k])


def _of_all(dynamic: eager.Dynamic) -> tuple[Tensor, ...]:
    """Those of all drafts, row by row."""
    return () if dynamic is None else (dynamic[0].flatten(0, 1), dynamic[1].flatten(0, 1))


def _verify_arguments(case: Case, affinity: Affinity, inputs: Inputs) -> tuple[Any, ...]:
    """Of `rdk::verify`: draft n = b K + j lies in row j B + b of the arena."""
    device, length, batch = inputs.step_keys.device, case.draft_length, case.batch
    n = torch.arange(batch * length, device=device)
    return (
        inputs.target_logits,
        inputs.draft_logits.flatten(0, 1),
        inputs.stats if case.stats else None,
        (n % length * batch + n // length).to(torch.int32),
        inputs.tokens.flatten(),
        (torch.arange(batch + 1, device=device) * length).to(torch.int32),
        inputs.temperature,
        inputs.temperature,
        inputs.step_keys,
        inputs.positions[0].contiguous(),
        *affinity.by_target,
        length,
        *_of_all(inputs.dynamic),
    )


def _ours(case: Case, affinity: Affinity, inputs: list[Inputs]) -> Call:
    if case.operator == "verify":
        return _of(operators.verify, [_verify_arguments(case, affinity, each) for each in inputs])
    if case.operator == "redistribute":
        return _of(
            operators.redistribute,
            [
                (
                    each.draft_logits[0],
                    each.temperature,
                    *affinity.by_target,
                    affinity.row_top,
                    *_of_draft(each.dynamic, 0),
                )
                for each in inputs
            ],
        )
    drafts = [_draft_arguments(affinity, each) for each in inputs]
    if case.operator == "draft":
        return _of(operators.draft, [arguments[0] for arguments in drafts])
    verifies = [_verify_arguments(case, affinity, each) for each in inputs]

    def pair(index: int) -> object:
        drafted = [operators.draft(*arguments) for arguments in drafts[index]]
        tokens = torch.stack([each[0] for each in drafted], 1).flatten()
        stats = torch.cat([each[1] for each in drafted])
        target, arena, _, rows, _, *others = verifies[index]
        return operators.verify(target, arena, stats, rows, tokens, *others)

    return pair


def _draft_arguments(affinity: Affinity, inputs: Inputs) -> list[tuple[Any, ...]]:
    """Of K calls of `rdk::draft`."""
    length = inputs.draft_logits.shape[0]
    return [
        (
            inputs.draft_logits[k],
            inputs.temperature,
            inputs.step_keys,
            inputs.positions[k],
            *affinity.by_draft,
            *_of_draft(inputs.dynamic, k),
        )
        for k in range(length)
    ]


def _eager_arguments(
    case: Case, affinity: Affinity, inputs: list[Inputs]
) -> tuple[Callable[..., object], list[tuple[Any, ...]]]:
    """The function of eager.py that does the case's work, and its arguments for each set."""
    entries = eager.Entries.of(affinity)
    if not case.verifies:
        function = eager.draft if case.operator == "draft" else eager.redistribute
        return function, [
            (each.draft_logits[0], each.temperature, entries, _of_draft(each.dynamic, 0) or None)
            for each in inputs
        ]
    arguments = []
    for each in inputs:
        target = each.target_logits.unflatten(0, (case.batch, case.draft_length + 1))
        given = (target, each.draft_logits) + ((each.tokens,) if case.operator == "verify" else ())
        arguments.append((*given, each.temperature, entries, each.dynamic))
    if case.operator == PAIR:
        return eager.draft_and_verify, arguments
    return eager.redistribute_and_verify, arguments


def _gather_workload(case: Case, random: torch.Generator) -> Workload:
    """Different rows of one head in each set, as long as there are enough."""
    device, dtype = random.device, case.torch_dtype
    some = torch.randn(
        min(1024, case.target_size), case.hidden_size, generator=random, device=device
    ).to(dtype)
    weight = some.repeat(math.ceil(case.target_size / some.shape[0]), 1)[: case.target_size]
    gathered = case.batch * case.columns
    count = max(1, min(MOST_SETS, case.target_size // gathered))
    drawn = torch.randperm(case.target_size, generator=random, device=device)
    drawn = drawn.repeat(math.ceil(count * gathered / case.target_size))[: count * gathered]
    inputs = [
        (
            torch.randn(case.batch, case.hidden_size, generator=random, device=device).to(dtype),
            weight,
            tokens.view(case.batch, case.columns).to(torch.int32),
        )
        for tokens in drawn.split(gathered)
    ]
    return Workload(
        case,
        None,
        count,
        _of(operators.gather_logits, inputs),
        {"eager": _of(eager.gather_logits, inputs)},
        (eager.gather_logits, list(inputs)),
        [],
    )
