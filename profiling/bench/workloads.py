"""Inputs of a case, and its work as calls: the operators' own and those they are compared with."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary

from . import eager
from .cases import OVERLAP, PAIR, Case

operators = torch.ops.rdk
VIRTUAL = 64  # virtual tokens, of the V_d
# Standard deviation of the noise between drafter and target: p ~ q exp(noise) overlaps with q by
# about 2 Phi(-noise / 2), that is 92 % and 13 %.
NOISE = {"high": 0.2, "low": 3.0}
MOST_SETS = 8

Call = Callable[[int], object]


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call. Drafts lie as K calls of `draft` leave them: `[K, B, ...]`."""

    draft_logits: Tensor
    temperature: Tensor  # [B]
    step_keys: Tensor  # [B]
    positions: Tensor  # [K, B]
    tokens: Tensor  # [B, K], as draft drew them
    stats: Tensor  # [K * B, 2 + R]
    target_logits: Tensor  # [B * (K + 1), V_t]
    accepted: tuple[int, ...] = ()  # of each sequence


@dataclass(frozen=True)
class Workload:
    """A case with several sets of inputs; a call takes the number of one.

    Attributes:
        ours: the operators.
        peers: the same work otherwise, by name. Those of `compilable` are plain functions that
            torch.compile can take, with their arguments.
        accepted: for each set of inputs, how many drafts of each sequence; empty if none.
        then: what follows a peer's call, not compiled: the backward pass.
    """

    case: Case
    affinity: Affinity | None
    sets: int
    ours: Call
    peers: dict[str, Call]
    compilable: tuple[Callable[..., object], list[tuple[Any, ...]]]
    accepted: list[tuple[int, ...]]
    then: Callable[[Any], object] = lambda result: result


def build(case: Case, device: torch.device) -> Workload:
    """The inputs, always the same ones, and the calls of a case."""
    random = torch.Generator(device).manual_seed(0)
    if case.operator == "gather_logits":
        return _gather_workload(case, random)
    affinity = affinity_of(case.sampler, case.target_size, case.draft_size).to(device)
    if case.operator == OVERLAP:
        return _overlap_workload(case, affinity, random)
    inputs = [draw_inputs(case, affinity, random) for _ in range(number_of_sets(case))]
    function, arguments = _eager_arguments(case, affinity, inputs)
    matrix = eager.Entries.of(affinity).matrix()
    peers = {
        "eager": _of(function, arguments),
        "sparse": _of(function, [(*each, matrix) for each in arguments]),
    }
    accepted = [each.accepted for each in inputs] if case.verifies else []
    ours = _ours(case, affinity, inputs)
    return Workload(case, affinity, len(inputs), ours, peers, (function, arguments), accepted)


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


@lru_cache(maxsize=4)
def affinity_of(sampler: str, target_size: int, draft_size: int) -> Affinity:
    """An affinity that keeps the likeliest `draft_size` tokens, on the CPU."""
    if draft_size == target_size:
        return Affinity.intersection(Vocabulary.identity(target_size))
    probs = mean_probs(target_size)
    if sampler != "virtual":
        vocabulary = Vocabulary.most_likely(probs, draft_size)
        if sampler == "first-order":
            with warnings.catch_warnings():  # of few accepted drafts: here it is about time
                warnings.simplefilter("ignore", UserWarning)
                return Affinity.first_order(vocabulary, probs, tau=1 / target_size)
        return Affinity.intersection(vocabulary)
    vocabulary = Vocabulary.most_likely(probs, draft_size - VIRTUAL)
    random = torch.Generator().manual_seed(2)
    clusters = torch.full((target_size,), -1)
    order = torch.randperm(vocabulary.pruned.numel(), generator=random)
    clusters[vocabulary.pruned[order]] = torch.arange(order.numel()) % VIRTUAL
    return Affinity.virtual_tokens(vocabulary, clusters, probs)


@lru_cache(maxsize=4)
def draft_means(sampler: str, target_size: int, draft_size: int) -> Tensor:
    """Logits `[V_d]` of a drafter that follows the mean probabilities, summed over its rows."""
    probs = mean_probs(target_size)
    if sampler == "first-order":  # it keeps the likeliest, whatever their rows lead to
        return probs[Vocabulary.most_likely(probs, draft_size).draft_ids].log().float()
    affinity = affinity_of(sampler, target_size, draft_size)
    targets = torch.arange(target_size).repeat_interleave(affinity.col_offsets.diff())
    mass = torch.zeros(draft_size, dtype=torch.float64)
    mass.index_add_(0, affinity.col_drafts.long(), probs[targets])
    return (mass.log() - affinity.bias).float()


def draw_inputs(case: Case, affinity: Affinity, random: torch.Generator) -> Inputs:
    """Drafter logits around the means, drafts drawn from them, target logits around log q."""
    device, dtype = random.device, case.torch_dtype
    length, batch = max(1, case.draft_length), case.batch
    means = draft_means(case.sampler, case.target_size, case.draft_size).to(device)
    noise = torch.randn(length, batch, case.draft_size, generator=random, device=device)
    logits = (means + 2 * noise).to(dtype)
    temperature = torch.full((batch,), case.temperature, device=device)
    step_keys = torch.randint(-(2**62), 2**62, (batch,), generator=random, device=device)
    first = torch.randint(0, 2**20, (batch,), generator=random, device=device)
    positions = first + torch.arange(length, device=device)[:, None]
    drafted = [
        operators.draft(each, temperature, step_keys, positions[k], *affinity.by_draft)
        for k, each in enumerate(logits)
    ]
    tokens = torch.stack([each[0] for each in drafted], 1)
    stats = torch.cat([each[1] for each in drafted])
    target_dtype = case.torch_target_dtype
    target_logits = torch.empty(0, case.target_size, dtype=target_dtype, device=device)
    if case.verifies:
        q = operators.redistribute(
            logits.flatten(0, 1),
            temperature.repeat(length),
            *affinity.by_target,
            affinity.row_top,
        ).unflatten(0, (length, batch))
        target_logits = target_like(q, NOISE[case.acceptance or "high"], random).to(target_dtype)
    inputs = Inputs(logits, temperature, step_keys, positions, tokens, stats, target_logits)
    if not case.verifies:
        return inputs
    accepted = operators.verify(*_verify_arguments(case, affinity, inputs))[1]
    return replace(inputs, accepted=tuple(accepted.tolist()))


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


def verify_layout(batch: int, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`draft_rows` and `draft_offsets` of `rdk::verify`: draft b K + j lies in row j B + b."""
    n = torch.arange(batch * length, device=device)
    offsets = torch.arange(batch + 1, device=device) * length
    return (n % length * batch + n // length).to(torch.int32), offsets.to(torch.int32)


def _verify_arguments(case: Case, affinity: Affinity, inputs: Inputs) -> tuple[Any, ...]:
    rows, offsets = verify_layout(case.batch, case.draft_length, inputs.step_keys.device)
    return (
        inputs.target_logits,
        inputs.draft_logits.flatten(0, 1),
        inputs.stats if case.stats else None,
        rows,
        inputs.tokens.flatten(),
        offsets,
        inputs.temperature,
        inputs.temperature,
        inputs.step_keys,
        inputs.positions[0].contiguous(),
        *affinity.by_target,
        case.draft_length,
    )


def _draft_arguments(affinity: Affinity, inputs: Inputs) -> list[tuple[Any, ...]]:
    """The arguments of K calls of `rdk::draft`."""
    return [
        (logits, inputs.temperature, inputs.step_keys, inputs.positions[k], *affinity.by_draft)
        for k, logits in enumerate(inputs.draft_logits)
    ]


def _ours(case: Case, affinity: Affinity, inputs: list[Inputs]) -> Call:
    if case.operator == "redistribute":
        last = (*affinity.by_target, affinity.row_top)
        rows = [(each.draft_logits[0], each.temperature, *last) for each in inputs]
        return _of(operators.redistribute, rows)
    drafts = [_draft_arguments(affinity, each) for each in inputs]
    if case.operator == "draft":
        return _of(operators.draft, [arguments[0] for arguments in drafts])
    verifies = [_verify_arguments(case, affinity, each) for each in inputs]
    if case.operator == "verify":
        return _of(operators.verify, verifies)

    def pair(index: int) -> object:
        drafted = [operators.draft(*arguments) for arguments in drafts[index]]
        tokens = torch.stack([each[0] for each in drafted], 1).flatten()
        stats = torch.cat([each[1] for each in drafted])
        target, arena, _, rows, _, *others = verifies[index]
        return operators.verify(target, arena, stats, rows, tokens, *others)

    return pair


def _eager_arguments(
    case: Case, affinity: Affinity, inputs: list[Inputs]
) -> tuple[Callable[..., object], list[tuple[Any, ...]]]:
    """The function of eager.py that does the case's work, and its arguments for each set."""
    entries = eager.Entries.of(affinity)
    if not case.verifies:
        function = eager.draft if case.operator == "draft" else eager.redistribute
        return function, [(each.draft_logits[0], each.temperature, entries) for each in inputs]
    arguments = []
    for each in inputs:
        target = each.target_logits.unflatten(0, (case.batch, case.draft_length + 1))
        given = (target, each.draft_logits) + ((each.tokens,) if case.operator == "verify" else ())
        arguments.append((*given, each.temperature, entries))
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
    peers = {"eager": _of(eager.gather_logits, inputs)}
    ours = _of(operators.gather_logits, inputs)
    return Workload(case, None, count, ours, peers, (eager.gather_logits, list(inputs)), [])


def _overlap_workload(case: Case, affinity: Affinity, random: torch.Generator) -> Workload:
    """One set of rows, of a target around the drafter."""
    device, dtype = random.device, case.torch_dtype
    means = draft_means(case.sampler, case.target_size, case.draft_size).to(device)
    noise = torch.randn(case.batch, case.draft_size, generator=random, device=device)
    draft_logits = (means + 2 * noise).to(dtype)
    temperature = torch.full((case.batch,), case.temperature, device=device)
    q = operators.redistribute(draft_logits, temperature, *affinity.by_target, affinity.row_top)
    target_logits = torch.empty_like(q, dtype=dtype)
    for row, given in zip(target_logits, q, strict=True):
        normal = torch.randn(len(given), generator=random, device=device)
        row.copy_(given.clamp(min=0.02 / len(given)).log() + NOISE["high"] * normal)
    del q
    grad = torch.ones(case.batch, device=device)

    def ours(index: int) -> object:
        alpha, below, stats = operators.overlap(
            target_logits, draft_logits, temperature, temperature, *affinity.by_target, None, None
        )
        return alpha, operators.overlap_backward(
            grad, below, stats, draft_logits, temperature, *affinity.by_draft, None, None
        )

    leaf = draft_logits.clone().requires_grad_()
    arguments = [(target_logits, leaf, temperature, eager.Entries.of(affinity))]

    def gradient(result: Tensor) -> object:
        return result, torch.autograd.grad(result, leaf)

    peers: dict[str, Call] = {"eager": lambda index: gradient(eager.overlap(*arguments[index]))}
    return Workload(case, affinity, 1, ours, peers, (eager.overlap, arguments), [], gradient)
