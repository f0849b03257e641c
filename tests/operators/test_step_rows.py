"""A step drafted into rows: the bits of `draft` and `verify`, in one call for each place.

Where `draft_step` keeps a row, and places that are not verified: test_any_call.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import rdk_cuda
from rdk_cuda import StepRows
from rdk_cuda.affinity import Affinity
from rdk_cuda.functional import operators
from tests import generators

pytestmark = pytest.mark.usefixtures("device")

B, K, SIZE = 3, 4, 2100


def step(dtype: torch.dtype, dynamic: int, limited: bool) -> dict[str, Any]:
    """The rows `[B, K, ...]` of a step, and what its sequences have in common."""
    made = generators.affinity("mixed-2", SIZE)
    rows = {"draft_logits": generators.logits(B * K, made.draft_size, dtype=dtype)}
    if dynamic:
        rows["dynamic_tokens"] = generators.dynamic_tokens(B * K, dynamic, SIZE)
        rows["dynamic_logits"] = generators.logits(B * K, dynamic, seed=1, dtype=dtype)
    limits: dict[str, Tensor] = {}
    if limited:
        limits = {"top_k": torch.tensor([300, 0, 5]).int(), "top_p": torch.tensor([1.0, 0.9, 1.0])}
    return {
        "affinity": made,
        "rows": {name: row.unflatten(0, (B, K)) for name, row in rows.items()},
        "limits": limits,
        "temperature": torch.tensor([1.0, 0.8, 0.0]),
        "seeds": torch.tensor([7, -3, 2**62]),
        "positions": torch.tensor([0, 17, 2**40]),
        "target": generators.logits(B * (K + 1), SIZE, seed=2, dtype=dtype).unflatten(
            0, (B, K + 1)
        ),
    }


def at_once(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Tokens and stats of all places, by `torch.ops.rdk.draft`."""
    flat = {name: row.flatten(0, 1) for name, row in given["rows"].items()}
    each = {name: x.repeat_interleave(K) for name, x in given["limits"].items()}
    keys = torch.ops.rdk.step_keys(given["seeds"], given["positions"])
    places = given["positions"][:, None] + torch.arange(K)
    affinity: Affinity = given["affinity"]
    tokens, stats = torch.ops.rdk.draft(
        flat.pop("draft_logits"),
        given["temperature"].repeat_interleave(K),
        keys.repeat_interleave(K),
        places.flatten(),
        *affinity.by_draft,
        **flat,
        **each,
    )
    return tokens.view(B, K), stats.view(B, K, -1)


OPTIONS = [
    (torch.float32, 0, False),
    (torch.bfloat16, 7, False),
    (torch.float16, 0, True),
    (torch.float32, 7, True),
]


class Calls(TorchDispatchMode):
    """The operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def chain(given: dict[str, Any], places: int, **first: Any) -> list[rdk_cuda.Draft]:
    """A step by the public functions."""
    rows = {name: row for name, row in given["rows"].items() if name != "draft_logits"}
    drafts: list[rdk_cuda.Draft] = []
    link = {"temperature": given["temperature"], "seeds": given["seeds"], **given["limits"]}
    link |= {"positions": given["positions"], **first}
    for k in range(places):
        own = {name: row[:, k] for name, row in rows.items()}
        logits = given["rows"]["draft_logits"][:, k]
        drafts.append(rdk_cuda.draft(logits, given["affinity"], **link, **own))
        link = {"after": drafts[-1]}
    return drafts


@pytest.mark.parametrize(("dtype", "dynamic", "limited"), OPTIONS)
def test_with_rows_the_functions_return_what_they_do_without(
    dtype: torch.dtype, dynamic: int, limited: bool
) -> None:
    given = step(dtype, dynamic, limited)
    tokens, stats = at_once(given)
    affinity, target = given["affinity"], given["target"]
    rows = StepRows(affinity, B, K + 1, dtype=dtype, dynamic_width=dynamic, limited=limited)
    for _ in range(2):  # in the same rows
        drafts = chain(given, K, rows=rows)
        joined = rdk_cuda.Draft.join(drafts)
        assert joined.rows is rows
        assert torch.equal(joined.tokens, tokens)
        torch.testing.assert_close(joined.stats, stats, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(joined.logits, given["rows"]["draft_logits"])
        options: dict[str, Any] = {"logprobs": "raw", "method": "block"}
        expected = rdk_cuda.verify(target, chain(given, K), affinity, 0.9, **options)
        for draft in (drafts, joined, drafts[:1] + drafts[1:]):
            found = rdk_cuda.verify(target, draft, affinity, 0.9, **options)
            assert all(map(torch.equal, found, expected))
        mask = torch.full((1, 1, -(-SIZE // 32)), -1).int().expand(B, K + 1, -1)
        found = rdk_cuda.verify(target, drafts, affinity, 0.9, allowed=mask, **options)
        assert torch.equal(found.tokens, expected.tokens)
        other = tokens.clone()
        other[:, 1] = -1
        ended = rdk_cuda.verify(target, joined.proposing(other), affinity, 0.9)
        assert int(ended.num_accepted.max()) <= 1
        drafts[1].tokens.fill_(-1)  # the rows have it, too
        assert torch.equal(rdk_cuda.verify(target, drafts, affinity, 0.9).tokens, ended.tokens)


def test_arguments_as_operators_take_them_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The operators' own checks are enough; the functions' are for what has to be converted."""
    given = step(torch.float32, 0, True)
    rows = StepRows(given["affinity"], B, K, limited=True)
    expected = chain(given, K, rows=rows)[-1].tokens.clone()
    for name in ("draft_into_rows", "step_arguments"):
        monkeypatch.setattr(operators, name, lambda *_: pytest.fail("the slow way is taken"))
    drafts = chain(given, K, rows=rows)
    assert torch.equal(drafts[-1].tokens, expected)
    rdk_cuda.verify(given["target"], drafts, given["affinity"], given["temperature"])


def test_a_step_is_six_calls_of_operators() -> None:
    given = step(torch.float32, 0, False)
    rows = StepRows(given["affinity"], B, K)
    logits = given["rows"]["draft_logits"].unbind(1)
    own = {name: given[name] for name in ("temperature", "seeds", "positions")}
    with Calls() as calls:
        drafts = [rdk_cuda.draft(logits[0], given["affinity"], rows=rows, **own)]
        for row in logits[1:]:
            drafts.append(rdk_cuda.draft(row, given["affinity"], after=drafts[-1]))
        rdk_cuda.verify(given["target"], drafts, given["affinity"], given["temperature"])
    assert len(calls.names) == K + 1, calls.names


def test_a_whole_step_can_be_recorded_and_replayed_with_other_values() -> None:
    """`make_fx` keeps the operators and drops our Python, as a CUDA graph does."""
    given = step(torch.float32, 0, True)
    limited = {"top_k": given["limits"]["top_k"], "top_p": given["limits"]["top_p"]}
    rows = StepRows(given["affinity"], B, K, limited=True)

    def whole() -> list[Tensor]:
        drafts = chain(given, K, rows=rows)
        verified = rdk_cuda.verify(
            given["target"], drafts, given["affinity"], given["temperature"], **limited
        )
        return [*verified, rows.tokens.clone()]

    recorded, seen = make_fx(whole)(), set()
    for change in (lambda: None, lambda: given["seeds"].add_(1), lambda: given["positions"].add_(1),
                   lambda: given["temperature"].mul_(3), lambda: limited["top_k"].fill_(1),
                   lambda: given["target"].neg_(),
                   lambda: given["rows"]["draft_logits"].neg_()):  # fmt: skip
        change()
        replayed = recorded()
        assert all(map(torch.equal, replayed, whole()))
        seen.add(str(replayed))
    assert len(seen) == 7  # a control: what has changed is read


def test_rows_that_hold_another_step_are_not_verified() -> None:
    given = step(torch.float32, 0, False)
    rows = StepRows(given["affinity"], B, K)
    first, logits = chain(given, K, rows=rows), given["rows"]["draft_logits"]
    later = chain(given, 1, rows=rows)
    for call in (
        lambda: rdk_cuda.verify(given["target"], first, given["affinity"]),
        lambda: rdk_cuda.draft(logits[:, 0], given["affinity"], after=first[0]),
        lambda: rdk_cuda.Draft.join([*later, first[1]]),
        lambda: first[0].logits,
    ):
        with pytest.raises(RuntimeError, match="its StepRows are filled by a later step"):
            call()
    assert "Draft(" in repr(first[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slots": 2}, r"rdk_cuda.draft: rows keep logits .* \[2, 1050\], torch.float32, 0, False"),
        ({"dtype": torch.float16}, "got .* torch.float32"),
        ({"dynamic_width": 3}, "leave rows out"),
        ({"places": 1}, r"rows have 1 places, .* has filled 1; this draft is number 2"),
    ],
)
def test_rows_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    given = step(torch.float32, 0, False)
    rows = StepRows(**{"affinity": given["affinity"], "slots": B, "places": K} | change)
    with pytest.raises(ValueError, match=message):
        chain(given, 2, rows=rows)


def test_what_rows_are_not_for_is_refused() -> None:
    given = step(torch.float32, 0, False)
    rows, logits = StepRows(given["affinity"], B, K), given["rows"]["draft_logits"]
    own = {"affinity": given["affinity"], "rows": rows}
    (first,) = chain(given, 1, rows=rows)
    for call, error in (
        (lambda: rdk_cuda.draft(logits, **own), "rows are for logits"),
        (lambda: rdk_cuda.draft(logits[:, 0], branches=1, **own), "without branches and ahead"),
        (lambda: rdk_cuda.draft(logits[:, 0], after=first, **own), "limits and rows belong"),
        (lambda: first.proposing(torch.zeros(B, 2)), "tokens has shape .*; needs"),
    ):
        with pytest.raises(ValueError, match=error):
            call()
    with pytest.raises(TypeError, match="rows is a int; needs StepRows"):
        rdk_cuda.draft(logits[:, 0], given["affinity"], rows=3)  # type: ignore[arg-type]


def test_with_rows_arguments_of_other_forms_are_taken_or_refused_as_without() -> None:
    """The operator is tried first; where it is not for it, nobody sees that it was."""
    given = step(torch.float32, 0, False)
    affinity, rows = given["affinity"], StepRows(given["affinity"], B, K)
    drafts = chain(given, K, rows=rows)
    temperature, target = given["temperature"], given["target"]
    expected = rdk_cuda.verify(target, drafts, affinity, temperature)
    wide = torch.stack([target, target], -1)[..., 0]
    assert wide.stride(-1) == 2
    for other in (
        rdk_cuda.verify(target, drafts, affinity, temperature.numpy()),
        rdk_cuda.verify(target, drafts, affinity, temperature.tolist()),
        rdk_cuda.verify(wide, drafts, affinity, temperature),
    ):
        assert all(map(torch.equal, other, expected))
    link = {"seeds": given["seeds"], "positions": given["positions"], "rows": rows}
    with pytest.raises(ValueError, match="draft_logits has shape \\[\\]; needs"):
        rdk_cuda.draft(torch.tensor(1.0), affinity, temperature, **link)
    with pytest.raises(TypeError, match=r"^draft\(\) missing 1 required positional argument"):
        rdk_cuda.draft(target[0])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^verify\(\) "):
        rdk_cuda.verify(target, drafts)  # type: ignore[call-arg]
