"""`rdk_cuda.draft / verify / redistribute` are the operators with an `Affinity` and a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import rdk_cuda
from rdk_cuda.affinity import Affinity
from tests import generators

from .test_python_layer_bad_input import FIRST, drafted, identity

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")

SIZE, BATCH, DRAFTS = 300, 4, 3


@pytest.fixture
def affinity() -> Affinity:
    return generators.affinity("mixed-2", SIZE)


def inputs(affinity: Affinity) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Drafter logits, dynamic tokens and their logits, target logits, all padded."""
    return (
        generators.logits(BATCH * DRAFTS, affinity.draft_size).unflatten(0, (BATCH, DRAFTS)),
        generators.dynamic_tokens(BATCH * DRAFTS, 4, SIZE).unflatten(0, (BATCH, DRAFTS)),
        generators.logits(BATCH * DRAFTS, 4, seed=1).unflatten(0, (BATCH, DRAFTS)),
        generators.logits(BATCH * (DRAFTS + 1), SIZE, seed=2).unflatten(0, (BATCH, DRAFTS + 1)),
    )


def test_redistribute_takes_one_temperature_or_many(affinity: Affinity) -> None:
    logits, tokens, values, _ = inputs(affinity)
    per_sequence = torch.tensor([0.5, 0.0, 1.0, 2.0])
    per_row = per_sequence[:, None].expand(BATCH, DRAFTS).contiguous()
    columns = (*affinity.by_target, affinity.row_top, tokens, values)
    expected = torch.ops.rdk.redistribute(logits, per_row, *columns)
    dynamic = {"dynamic_tokens": tokens, "dynamic_logits": values}
    for temperature in (per_row, per_sequence):
        q = rdk_cuda.redistribute(logits, affinity, temperature, **dynamic)
        assert torch.equal(q, expected)
    one = logits[2, 0]
    assert rdk_cuda.redistribute(one, affinity).shape == (SIZE,)
    for same, also in (((), (1.0,)), ((torch.tensor(0.7),), (0.7,))):
        q = rdk_cuda.redistribute(one, affinity, *same)
        assert torch.equal(q, rdk_cuda.redistribute(one, affinity, *also))


def test_a_step_is_the_operators_with_step_keys(affinity: Affinity) -> None:
    logits, tokens, values, target = inputs(affinity)
    seeds, positions = torch.tensor([5, -3, 2**62, 0]), torch.tensor([0, 17, 2**34, 3])
    temperature = torch.tensor([0.5, 0.0, 1.0, 2.0])
    given = {"seeds": seeds, "positions": positions}
    dynamic = {"dynamic_tokens": tokens, "dynamic_logits": values}
    draft = rdk_cuda.draft(logits, affinity, temperature, **given, **dynamic)
    keys = torch.ops.rdk.step_keys(seeds, positions)
    drafted, stats = torch.ops.rdk.draft(
        logits,
        *(x[:, None].expand(BATCH, DRAFTS).contiguous() for x in (temperature, keys)),
        positions[:, None] + torch.arange(DRAFTS),
        *affinity.by_draft,
        tokens,
        values,
    )
    made = (draft.tokens, draft.stats, draft.step_keys)
    assert all(map(torch.equal, made, (drafted, stats, keys)))

    expected = torch.ops.rdk.verify(
        target.flatten(0, 1),
        logits.flatten(0, 1),
        stats.flatten(0, 1),
        None,
        drafted.flatten(),
        torch.arange(BATCH + 1, dtype=torch.int32) * DRAFTS,
        torch.full((BATCH,), 0.8),
        temperature,
        keys,
        positions,
        *affinity.by_target,
        DRAFTS,
        tokens.flatten(0, 1),
        values.flatten(0, 1),
    )
    assert all(map(torch.equal, rdk_cuda.verify(target, draft, affinity, 0.8), expected))


def test_drafting_one_by_one_is_drafting_at_once(affinity: Affinity) -> None:
    logits, tokens, values, target = inputs(affinity)
    first: dict[str, Any] = {"temperature": 0.9, "seeds": 3, "positions": 0}
    at_once = rdk_cuda.draft(
        logits, affinity, dynamic_tokens=tokens, dynamic_logits=values, **first
    )
    parts: list[rdk_cuda.Draft] = []
    for j in range(DRAFTS):
        dynamic = {"dynamic_tokens": tokens[:, j], "dynamic_logits": values[:, j]}
        link = {"after": parts[-1]} if parts else first
        parts.append(rdk_cuda.draft(logits[:, j], affinity, **link, **dynamic))
    joined = rdk_cuda.Draft.join(parts)
    assert torch.equal(joined.tokens, at_once.tokens)
    expected = rdk_cuda.verify(target, at_once, affinity)
    for draft in (joined, parts):
        assert all(map(torch.equal, rdk_cuda.verify(target, draft, affinity), expected))


def test_branches_are_the_operators_for_a_sequence_or_a_row(affinity: Affinity) -> None:
    logits, *_ = inputs(affinity)
    batch, length = logits.shape[:2]
    own = torch.arange(batch * length, dtype=torch.int32).view(batch, length)
    step: dict[str, Any] = {"seeds": 3, "positions": 0}
    plain = rdk_cuda.draft(logits, affinity, **step)
    for given, each in ((7, own * 0 + 7), (own[:, 0].tolist(), own[:, :1]), (own.long(), own)):
        drafted = rdk_cuda.draft(logits, affinity, branches=given, **step)
        tokens, _ = torch.ops.rdk.draft(
            logits,
            torch.ones(batch, length),
            plain.step_keys[:, None].expand(batch, length).contiguous(),
            torch.arange(length).repeat(batch, 1),
            *affinity.by_draft,
            branches=each.expand(batch, length).contiguous(),
        )
        assert torch.equal(drafted.tokens, tokens)
        assert not torch.equal(tokens, plain.tokens)
    for wrong in (-1, 2**24, [-1] * batch):
        with pytest.raises(ValueError, match=r"branches is .*; needs to be 0 or"):
            rdk_cuda.draft(logits, affinity, branches=wrong, **step)


def test_one_scalar_seed_is_never_shared(affinity: Affinity) -> None:
    """Sequences with the same logits draft different tokens."""
    logits = generators.logits(1, affinity.draft_size).expand(500, -1)
    for seeds in (7, torch.tensor(7), None):
        draft = rdk_cuda.draft(logits, affinity, seeds=seeds, positions=0)
        assert draft.step_keys.unique().numel() == 500
        assert draft.tokens.unique().numel() > 30


def test_each_step_has_a_key_of_its_own(affinity: Affinity) -> None:
    """The same position drafted anew in a later step gets other random numbers."""
    logits, *_ = inputs(affinity)
    first = rdk_cuda.draft(logits, affinity, seeds=1, positions=10)
    second = rdk_cuda.draft(logits[:, 1:], affinity, seeds=1, positions=11)
    assert not torch.equal(first.tokens[:, 1:], second.tokens)


def test_a_draft_without_distribution(affinity: Affinity) -> None:
    target = inputs(affinity)[3]
    copied = target[:, :DRAFTS].argmax(-1)
    copied[1, 1] = -1
    draft = rdk_cuda.Draft.without_distribution(copied, seeds=2, positions=0)
    verified = rdk_cuda.verify(target, draft, affinity, temperature=0)
    assert verified.num_accepted.tolist() == [3, 1, 3, 3]
    assert torch.equal(verified.tokens[0], target[0].argmax(-1))


# ----------------------------------------------------------------------------------- other forms


def test_copied_drafts_may_be_views() -> None:
    history = torch.arange(5)
    for tokens in (history[None, :4:2], history[:4].view(2, 2)[:, :1]):
        batch, length = tokens.shape
        copied = rdk_cuda.Draft.without_distribution(tokens, seeds=3, positions=0)
        rdk_cuda.verify(torch.zeros(batch, length + 1, 5), copied, identity())


def test_drafts_are_compared_by_identity() -> None:
    assert FIRST == FIRST
    assert drafted(seeds=1, positions=10) != FIRST


@pytest.mark.not_on("cuda")
def test_a_step_of_the_python_layer_compiles_into_one_graph() -> None:
    affinity = identity()

    def step(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
        first = rdk_cuda.draft(draft_logits, affinity, seeds=1, positions=7)
        second = rdk_cuda.draft(draft_logits, affinity, after=first)
        return rdk_cuda.verify(target_logits, [first, second], affinity).tokens

    inputs = torch.randn(3, 5), torch.randn(3, 3, 5)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs), step(*inputs))


def test_eager_calls_of_other_forms_do_not_compile_a_caller_again(cpu_or_cuda: str) -> None:
    counter = CompileCounter()
    affinity = generators.affinity("identity", 8)
    logits = torch.zeros(1, 8)

    @torch.compile(backend=counter, fullgraph=True)
    def drafted(given: Tensor) -> Tensor:
        return rdk_cuda.draft(given, affinity, seeds=0, positions=3).tokens

    for form in ({"temperature": 1}, {"temperature": 0.5}, {"top_k": 3}, {"min_p": 0.0}):
        rdk_cuda.draft(logits, affinity, seeds=0, positions=3, **form)
        drafted(logits)
    assert counter.frame_count == 1


def test_a_negative_top_k_of_64_bits_leaves_no_distribution() -> None:
    affinity = rdk_cuda.Affinity.intersection(rdk_cuda.Vocabulary.identity(4))
    for top_k, drawn in ((-1, False), (-(2**40), False), (0, True), (2**40, True)):
        limits = {"top_k": torch.tensor([top_k])}
        draft = rdk_cuda.draft(torch.zeros(1, 4), affinity, 1.0, seeds=0, positions=0, **limits)
        assert (int(draft.tokens.flatten()[0]) >= 0) == drawn
