"""`rdk_cuda.draft / verify / redistribute` are the operators with an `Affinity` and a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import rdk_cuda
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators

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
    assert draft.stats is not None
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
        draft = rdk_cuda.draft(
            logits,
            affinity,
            seeds=seeds,
            positions=0,
            generator=generators.generator(1) if seeds is None else None,
        )
        assert draft.step_keys.unique().numel() == 500
        assert draft.tokens.unique().numel() > 30


def test_a_generator_makes_a_run_repeatable(affinity: Affinity) -> None:
    logits, *_ = inputs(affinity)
    first = rdk_cuda.draft(logits, affinity, generator=generators.generator(1))
    again = rdk_cuda.draft(logits, affinity, generator=generators.generator(1))
    other = rdk_cuda.draft(logits, affinity, generator=generators.generator(2))
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, other.tokens)


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


# --------------------------------------------------------------------------------------- refusals


def identity(size: int = 5) -> Affinity:
    return Affinity.intersection(Vocabulary.identity(size))


def drafted(*arguments: Any, **named: Any) -> rdk_cuda.Draft:
    """One token for one sequence of five."""
    return rdk_cuda.draft(torch.zeros(1, 5), identity(), *arguments, **named)


def with_dynamic(columns: int, **named: Any) -> rdk_cuda.Draft:
    tokens, values = torch.zeros(1, columns, dtype=torch.int32), torch.zeros(1, columns)
    return drafted(dynamic_tokens=tokens, dynamic_logits=values, **named)


FIRST = drafted(seeds=1, positions=10)
SECOND = drafted(after=FIRST)
OTHER = drafted(0.3, seeds=2, positions=50)
TARGET, TWO = torch.zeros(1, 3, 5), torch.zeros(2, 5)
DRAFT, VERIFY, JOIN = r"rdk_cuda\.draft: ", r"rdk_cuda\.verify: ", r"Draft\.join: "
TREE = r"rdk_cuda\.verify_tree: "
PAIR, ROWS = rdk_cuda.draft(TWO, identity(), seeds=1, positions=0), torch.zeros(2, 3).long()


def verified(**options: Any) -> rdk_cuda.Verified:
    """One draft of one sequence."""
    return rdk_cuda.verify(TARGET[:, :2], FIRST, identity(), **options)


def walked(**changes: Any) -> object:
    """A chain of three nodes for each of two sequences."""
    given = {"target_logits": torch.zeros(2, 4, 5), "tokens": ROWS}
    given |= {} if "draft" in changes else {"seeds": 1, "positions": 0}
    return rdk_cuda.verify_tree(**given | {"parents": torch.tensor([-1, 0, 1])} | changes)


REFUSED: dict[str, Callable[[], object]] = {
    DRAFT + r"draft_logits has shape \[5\]": lambda: rdk_cuda.draft(TWO[0], identity()),
    DRAFT + r"temperature has shape \[3\]": lambda: rdk_cuda.draft(TWO, identity(), torch.ones(3)),
    r"rdk_cuda\.redistribute: temperature has shape \[3\]": lambda: rdk_cuda.redistribute(
        TWO, identity(), torch.ones(3)
    ),
    DRAFT + r"positions is .* \[9\]": lambda: drafted(positions=torch.arange(9)),
    DRAFT + "got both seeds and generator": lambda: drafted(
        seeds=1, positions=0, generator=generators.generator(1)
    ),
    DRAFT + "temperature, seeds, .* belong to the first draft": lambda: drafted(1.0, after=FIRST),
    DRAFT + ".* seeds, .* belong to the first draft": lambda: drafted(seeds=1, after=FIRST),
    DRAFT + ".*, positions .* belong to the first": lambda: drafted(positions=9, after=FIRST),
    DRAFT + "draft_logits has 2 sequences, but after= has 1": lambda: rdk_cuda.draft(
        TWO, identity(), after=FIRST
    ),
    VERIFY + r"target_logits has shape \[1, 3, 5\]": lambda: rdk_cuda.verify(
        TARGET, FIRST, identity()
    ),
    VERIFY + r"target_logits has shape \[3, 5\]": lambda: rdk_cuda.verify(
        TARGET[0], [FIRST, SECOND], identity()
    ),
    VERIFY + "draft lacks the first 1": lambda: rdk_cuda.verify(TARGET[:, 1:], SECOND, identity()),
    JOIN + "drafts is empty": lambda: rdk_cuda.verify(TARGET, [], identity()),
    JOIN + r"drafts\[1\] follows 0 tokens .* in order": lambda: rdk_cuda.verify(
        TARGET, [SECOND, FIRST], identity()
    ),
    JOIN + r"drafts\[1\] belongs to another step": lambda: rdk_cuda.verify(
        TARGET, [FIRST, drafted(after=OTHER)], identity()
    ),
    JOIN + "dynamic_tokens have the shapes": lambda: rdk_cuda.Draft.join(
        [first := with_dynamic(3), with_dynamic(2, after=first)]
    ),
    JOIN + "only some of the drafts have dynamic_tokens": lambda: rdk_cuda.Draft.join(
        [FIRST, with_dynamic(2, after=FIRST)]
    ),
    VERIFY + r"allowed has shape \[2, 2\]; needs \[1, 2, ceil": lambda: verified(
        allowed=torch.zeros(2, 2, dtype=torch.int32)
    ),
    VERIFY + "logprobs is 'all'; needs": lambda: verified(logprobs="all"),
    VERIFY + r"top_p has shape \[2\]; needs \[1\]": lambda: verified(top_p=[0.5, 0.5]),
    VERIFY + 'method is \'blocks\'; needs "token" or "block"': lambda: verified(method="blocks"),
    TREE + r"tokens has shape \[3\]": lambda: walked(tokens=ROWS[0]),
    TREE + r"target_logits has shape .*needs \[2, 4, V_t\]": lambda: walked(
        target_logits=torch.zeros(2, 3, 5)
    ),
    TREE + "parents is torch.float32": lambda: walked(parents=torch.zeros(3)),
    TREE + r"parents is torch.int32 of shape \[2, 2\]": lambda: walked(
        parents=torch.zeros(2, 2).int()
    ),
    TREE + r"allowed has shape \[8, 1\]": lambda: walked(allowed=torch.zeros(8, 1).int()),
    TREE + "method is 'both'": lambda: walked(method="both"),
    TREE + "got draft_rows or affinity without draft": lambda: walked(draft_rows=ROWS),
    TREE + "seeds, positions": lambda: walked(
        draft=PAIR, draft_rows=ROWS, affinity=identity(), seeds=1, positions=0
    ),
    TREE + "got draft without draft_rows or affinity": lambda: walked(draft=PAIR, draft_rows=ROWS),
    TREE + "got draft without draft_rows": lambda: walked(draft=PAIR, affinity=identity()),
    TREE + ".*lacks the first 1 rows": lambda: walked(
        draft=rdk_cuda.draft(TWO, identity(), after=PAIR),
        draft_rows=ROWS,
        affinity=identity(),
    ),
    TREE + "draft_rows is torch": lambda: walked(
        draft=PAIR, draft_rows=ROWS[0], affinity=identity()
    ),
    r"Draft\.without_distribution: tokens has shape \[1\]": lambda: (
        rdk_cuda.Draft.without_distribution(torch.zeros(1), seeds=1, positions=0)
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_together_is_refused_by_function_and_argument(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


STEPS: dict[str, Callable[..., object]] = {
    "rdk_cuda.draft": drafted,
    "Draft.without_distribution": lambda **given: rdk_cuda.Draft.without_distribution(
        torch.zeros(1, 1, dtype=torch.int64), **given
    ),
    "rdk_cuda.verify_tree": lambda **given: rdk_cuda.verify_tree(
        TARGET, torch.zeros(1, 2, dtype=torch.int64), torch.tensor([-1, 0]), **given
    ),
}


@pytest.mark.parametrize("function", STEPS)
def test_seeds_without_positions_would_share_a_key_and_are_refused(function: str) -> None:
    with pytest.raises(ValueError, match=f"{function}: got seeds without positions.* pass pos"):
        STEPS[function](seeds=1)
    STEPS[function](positions=3)  # each call has seeds of its own
    STEPS[function](generator=generators.generator(1))


@pytest.mark.parametrize("function", STEPS)
def test_seeds_and_positions_of_64_unsigned_bits_are_taken_in_every_form(function: str) -> None:
    for unsigned in (2**63, 2**64 - 1):
        forms = [[unsigned], [unsigned - 2**64], torch.tensor([unsigned - 2**64])]
        results = [STEPS[function](seeds=form, positions=form) for form in forms]
        for each in results[1:]:
            for name in ("tokens", "step_keys", "path"):
                if hasattr(each, name):
                    assert torch.equal(getattr(each, name), getattr(results[0], name))
    for beyond in (2**64, -(2**63) - 1):
        for form in (beyond, [beyond]):
            with pytest.raises(
                ValueError, match=rf"{function}: seeds is -?\d+; needs an integer of"
            ):
                STEPS[function](seeds=form, positions=0)


OUT_OF_RANGE = {
    "temperature": [-1, -1e-9, math.nan, math.inf],
    "top_k": [-1, [-1]],
    "top_p": [0, 95, -0.1, 1.1, math.nan, [95.0]],
    "min_p": [-0.1, 1.1, math.nan, [math.nan]],
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_numbers_that_are_no_temperature_or_limit_are_refused_by_name(name: str) -> None:
    tree = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([-1, 0])
    functions: dict[str, Callable[..., object]] = {
        "draft": drafted,
        "redistribute": lambda **given: rdk_cuda.redistribute(TWO[:1], identity(), **given),
        "verify": lambda **given: rdk_cuda.verify(TARGET, [FIRST, SECOND], identity(), **given),
        "verify_tree": lambda **given: rdk_cuda.verify_tree(TARGET, *tree, **given),
    }
    for function, call in functions.items():
        for value in OUT_OF_RANGE[name]:
            if value is None and function == "draft":
                continue  # the default
            with pytest.raises(
                ValueError, match=rf"rdk_cuda\.{function}: {name} is .*; needs to be"
            ):
                call(**{name: value})
        call(**{name: torch.tensor([-1])})  # in a tensor it has a result
        call(**{name: 1})
        call(**{name: [1]})
    free, vast = drafted(seeds=1, positions=0), drafted(seeds=1, positions=0, top_k=2**70)
    assert torch.equal(free.tokens, vast.tokens)


@pytest.mark.parametrize("seeds", [1.5, [1.0, 2.0], [1, 2, 3], "7", torch.ones(2)])
def test_seeds_that_are_none_are_refused_by_name(seeds: Any) -> None:
    with pytest.raises(ValueError, match=r"rdk_cuda\.draft: seeds is"):
        rdk_cuda.draft(TWO, identity(), seeds=seeds, positions=0)


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


def test_what_is_no_tensor_affinity_or_number_is_named(affinity: Affinity) -> None:
    logits, _, _, target = inputs(affinity)
    draft = rdk_cuda.draft(logits, affinity, seeds=[0] * BATCH, positions=0)
    other: Any = Vocabulary.identity(affinity.target_size)
    absent: Any = None
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: rdk_cuda.draft(logits, other), "draft: affinity is a Vocabulary; needs an Aff"),
        (lambda: rdk_cuda.redistribute(logits, other), "redistribute: affinity is a Vocabulary"),
        (lambda: rdk_cuda.verify(target, draft, other), "verify: affinity is a Vocabulary"),
        (lambda: rdk_cuda.draft(logits.tolist(), affinity), "draft: draft_logits is a list; needs"),
        (lambda: rdk_cuda.redistribute(logits.tolist(), affinity), "draft_logits is a list; needs"),
        (lambda: rdk_cuda.verify(target.tolist(), draft, affinity), "target_logits is a list"),
        (lambda: rdk_cuda.redistribute(logits, affinity, absent), "temperature is None; needs a"),
        (lambda: rdk_cuda.verify(target, draft, affinity, absent), "verify: temperature is None"),
        (lambda: rdk_cuda.verify(target, absent, affinity), "drafts is a NoneType; needs Draft"),
        (lambda: rdk_cuda.verify(target, [logits], affinity), "drafts is a list; needs Draft obj"),
        (lambda: rdk_cuda.verify(target, draft, affinity, allowed=other), "allowed is a Vocab"),
    ]
    for call, sentence in calls:
        with pytest.raises(TypeError, match=sentence):
            call()


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
