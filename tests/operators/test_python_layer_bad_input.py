"""What the Python layer refuses, by function and argument."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import rdk_cuda
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("cpu_or_cuda")


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
OTHER, WITH = drafted(0.3, seeds=2, positions=50), with_dynamic(3)
TARGET, TWO = torch.zeros(1, 3, 5), torch.zeros(2, 5)
DRAFT, VERIFY, JOIN = r"rdk_cuda\.draft: ", r"rdk_cuda\.verify: ", r"Draft\.join: "
TREE = r"rdk_cuda\.verify_tree: "
PAIR, ROWS = rdk_cuda.draft(TWO, identity(), seeds=1, positions=0), torch.zeros(2, 3).long()


def verified(target: Any = TARGET[:, :2], drafts: Any = FIRST, **options: Any) -> object:
    return rdk_cuda.verify(target, drafts, identity(), **options)


def walked(**changes: Any) -> object:
    """A chain of three nodes for each of two sequences."""
    given = {"target_logits": torch.zeros(2, 4, 5), "tokens": ROWS}
    given |= {} if "draft" in changes else {"seeds": 1, "positions": 0}
    return rdk_cuda.verify_tree(**given | {"parents": torch.tensor([-1, 0, 1])} | changes)


def redistributed(*given: Any) -> object:
    return rdk_cuda.redistribute(TWO, identity(), *given)


def of_two(*given: Any, **named: Any) -> rdk_cuda.Draft:
    return rdk_cuda.draft(TWO, identity(), *given, **named)


def joined(*drafts: rdk_cuda.Draft) -> object:
    return verified(TARGET, list(drafts))


def undrawn(tokens: Any) -> object:
    return rdk_cuda.Draft.without_distribution(tokens, seeds=1, positions=0)


INT, DRAWN = torch.int32, {"draft": PAIR, "draft_rows": ROWS, "affinity": identity()}
# A call, what it is given by place and by name, and how it is refused.
REFUSED: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], str]] = [
    (rdk_cuda.draft, (TWO[0], identity()), {}, DRAFT + r"draft_logits has shape \[5\]"),
    (of_two, (torch.ones(3),), {}, DRAFT + r"temperature has shape \[3\]"),
    (redistributed, (torch.ones(3),), {}, r"rdk_cuda\.redistribute: temperature has shape \[3\]"),
    (drafted, (), {"positions": torch.arange(9)}, DRAFT + r"positions is .* \[9\]"),
    (drafted, (1.0,), {"after": FIRST}, DRAFT + "temperature, seeds, .* belong to the first draft"),
    (drafted, (), {"seeds": 1, "after": FIRST}, DRAFT + ".* seeds, .* belong to the first draft"),
    (drafted, (), {"positions": 9, "after": FIRST}, DRAFT + ".* positions, .* belong to the first"),
    (of_two, (), {"after": FIRST}, DRAFT + "draft_logits has 2 sequences, but after= has 1"),
    (verified, (TARGET,), {}, VERIFY + r"target_logits has shape \[1, 3, 5\]"),
    (verified, (TARGET[0], [FIRST, SECOND]), {}, VERIFY + r"target_logits has shape \[3, 5\]"),
    (verified, (TARGET[:, 1:], SECOND), {}, VERIFY + "draft lacks the first 1"),
    (joined, (), {}, JOIN + "drafts is empty"),
    (joined, (SECOND, FIRST), {}, JOIN + r"drafts\[1\] follows 0 tokens .* in order"),
    (joined, (FIRST, drafted(after=OTHER)), {}, JOIN + r"drafts\[1\] follows 1 tokens of another"),
    (joined, (WITH, with_dynamic(2, after=WITH)), {}, JOIN + "dynamic_tokens have the shapes"),
    (joined, (FIRST, with_dynamic(2, after=FIRST)), {}, JOIN + "only some of .* dynamic_tokens"),
    (verified, (), {"allowed": torch.zeros(2, 2, dtype=INT)}, r"\[2, 2\]; needs \[1, 2, ceil"),
    (verified, (), {"draft_rows": ROWS}, VERIFY + r"draft_rows has shape \[2, 3\]"),
    (verified, (), {"logprobs": "all"}, VERIFY + "logprobs is 'all'; needs"),
    (verified, (), {"top_p": [0.5, 0.5]}, VERIFY + r"top_p has shape \[2\]; needs \[1\]"),
    (verified, (), {"method": "blocks"}, VERIFY + 'method is \'blocks\'; needs "token" or "block"'),
    (walked, (), {"tokens": ROWS[0]}, TREE + r"tokens has shape \[3\]"),
    (walked, (), {"target_logits": torch.zeros(2, 3, 5)}, TREE + r".*needs \[2, 4, V_t\]"),
    (walked, (), {"parents": torch.zeros(3)}, TREE + "parents has .* torch.float32"),
    (walked, (), {"parents": torch.zeros(2, 2, dtype=INT)}, TREE + r"parents has shape \[2, 2\]"),
    (walked, (), {"allowed": torch.zeros(8, 1, dtype=INT)}, TREE + r"allowed has shape \[8, 1\]"),
    (walked, (), {"method": "both"}, TREE + "method is 'both'"),
    (walked, (), {"draft_rows": ROWS}, TREE + "got draft_rows or affinity without draft"),
    (walked, (), {**DRAWN, "seeds": 1, "positions": 0}, TREE + "seeds and positions belong to the"),
    (walked, (), {**DRAWN, "affinity": None}, TREE + "got draft without draft_rows or affinity"),
    (walked, (), {**DRAWN, "draft_rows": None}, TREE + "got draft without draft_rows"),
    (walked, (), {**DRAWN, "draft": of_two(after=PAIR)}, TREE + ".*lacks the first 1 rows"),
    (walked, (), {**DRAWN, "draft_rows": ROWS[0]}, TREE + "draft_rows has shape"),
    (undrawn, (torch.zeros(1),), {}, r"Draft\.without_distribution: tokens has shape \[1\]"),
]


OTHER_TYPE, LIST = Vocabulary.identity(5), TWO.tolist()
REFUSED_TYPES: list[tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], str]] = [
    (rdk_cuda.draft, (TWO, OTHER_TYPE), {}, "draft: affinity is a Vocabulary; needs an Aff"),
    (rdk_cuda.redistribute, (TWO, OTHER_TYPE), {}, "redistribute: affinity is a Vocabulary"),
    (rdk_cuda.verify, (TARGET, FIRST, OTHER_TYPE), {}, "verify: affinity is a Vocabulary"),
    (rdk_cuda.draft, (LIST, identity()), {}, "draft: draft_logits is a list; needs"),
    (rdk_cuda.redistribute, (LIST, identity()), {}, "draft_logits is a list; needs"),
    (verified, (LIST,), {}, "target_logits is a list"),
    (redistributed, (None,), {}, "temperature is None; needs a"),
    (verified, (), {"temperature": None}, "verify: temperature is None"),
    (verified, (TARGET, None), {}, "drafts is a NoneType; needs Draft"),
    (verified, (TARGET, [TWO]), {}, "drafts is a list; needs Drafts"),
    (verified, (), {"allowed": OTHER_TYPE}, "allowed is a Vocab"),
]


@pytest.mark.parametrize(
    ("error", "call", "given", "named", "message"),
    [(ValueError, *each) for each in REFUSED] + [(TypeError, *each) for each in REFUSED_TYPES],
    ids=[each[-1][:40] for each in REFUSED + REFUSED_TYPES],
)
def test_what_does_not_fit_together_is_refused_by_function_and_argument(
    error: type[Exception],
    call: Callable[..., object],
    given: tuple[Any, ...],
    named: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        call(*given, **named)


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
