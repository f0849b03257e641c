"""A step that is drafted into `StepRows`, and verified where it lies.

Nothing is looked at that the operator looks at, too. Where it refuses, or something has to be
converted, `draft` and `verify` go on as without rows: they convert it or say what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from .. import _ops as operators
from .._ops.contract import LIMITS
from .._ops.inputs import Numbers, row_limits, seeds_and_positions, temperatures
from ..affinity import Affinity
from .rows import StepRows
from .step import LOGPROBS, METHODS, Draft, Verified

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_LIMITS = frozenset(LIMITS)
_PLAIN = Tensor, int, float, type(None)
# By an operator, or by what is none of ours.
_REFUSED = AttributeError, IndexError, RuntimeError, TypeError


def unless(
    quick: Callable[..., _Result | None],
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result]]:
    """Make a function that is called only where another one returns None for the same call."""

    def decorate(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
        @wraps(function)
        def either(*args: Any, **kwargs: Any) -> _Result:
            if not torch.compiler.is_compiling():
                try:
                    result = quick(*args, **kwargs)
                except TypeError:  # arguments are missing, or too many: the other one says which
                    result = None
                if result is not None:
                    return result
            return function(*args, **kwargs)

        return either

    return decorate


def draft_at_once(
    draft_logits: Tensor,
    affinity: Affinity,
    temperature: Any = None,
    *,
    seeds: Any = None,
    positions: Any = None,
    after: Any = None,
    rows: Any = None,
    dynamic_tokens: Tensor | None = None,
    dynamic_logits: Tensor | None = None,
    **others: Any,
) -> Draft | None:
    place, link = 0, (temperature, seeds, positions)
    try:
        if after is not None:
            if others or not temperature is seeds is positions is rows is None:
                return None
            place, rows = after.offset + after.tokens.shape[1], after.rows
            if rows is None or rows.step is not after.__dict__["step"] or rows.drafted != place:
                return None
            link, limits = rows.link, after.limits
        else:
            if rows is None or draft_logits.shape[0] != rows.slots or others.keys() - _LIMITS:
                return None
            if not (isinstance(temperature, Tensor) and isinstance(seeds, Tensor)):
                return None
            limits = tuple(map(others.get, LIMITS))
        dynamic = dynamic_tokens, dynamic_logits
        return _drafted(draft_logits, affinity, rows, place, link, limits, *dynamic)
    except _REFUSED:
        return None


def draft_into_rows(
    logits: Tensor,
    affinity: Affinity,
    after: Draft | None,
    rows: StepRows | None,
    dynamic: tuple[Tensor | None, Tensor | None],
    given: tuple[Any, ...],
) -> Draft:
    """Draft the next place of a step that is kept in rows, of arguments of any form."""
    link: tuple[Tensor, ...]
    truncation: tuple[Tensor | None, ...]
    batch, width = logits.shape[0], 0 if dynamic[0] is None else dynamic[0].shape[-1]
    if width == 0:
        dynamic = None, None
    if after is None:
        name, device, place = "rdk_cuda.draft", logits.device, 0
        if not isinstance(rows, StepRows):
            raise TypeError(f"{name}: rows is a {type(rows).__name__}; needs StepRows")
        scale, seeds, positions, top_k, top_p, min_p = given
        scale = temperatures(name, 1.0 if scale is None else scale, (batch,), device)
        link = (scale, *seeds_and_positions(name, seeds, positions, batch, device))
        truncation = row_limits(name, top_k, top_p, min_p, (batch,), device)
        rows.drafted = 0
    else:
        check_continues(after, batch, (*given, rows))
        rows = cast(StepRows, after.rows)
        place = after.offset + after.tokens.shape[1]
        link, truncation = rows.link, after.limits
    rows.check(logits, width, any(limit is not None for limit in truncation), place)
    return _drafted(logits, affinity, rows, place, link, truncation, *dynamic)


def _drafted(
    logits: Tensor,
    affinity: Affinity,
    rows: StepRows,
    place: int,
    link: tuple[Tensor, ...],
    limits: tuple[Tensor | None, ...],
    dynamic_tokens: Tensor | None,
    dynamic_logits: Tensor | None,
) -> Draft:
    operators.draft_step(
        logits,
        *rows.memory,
        place,
        *link,
        *affinity.by_draft,
        dynamic_tokens,
        dynamic_logits,
        *limits,
    )
    if place == 0:
        rows.begin(link, limits)
    rows.drafted = place + 1
    return Draft.of_rows(rows, place, rows.place_tokens[place])


def check_continues(after: Draft, batch: int, given: Sequence[object]) -> None:
    """Refuse what belongs to the first draft of a step, and another batch."""
    if any(value is not None for value in given):
        raise ValueError(
            "rdk_cuda.draft: temperature, seeds, positions, limits and rows belong to the first "
            "draft of a step; leave them out together with after="
        )
    after.refuse_if_filled_again()
    if after.tokens.shape[0] != batch:
        raise ValueError(
            f"rdk_cuda.draft: draft_logits has {batch} sequences, but after= has "
            f"{after.tokens.shape[0]}; both need the same batch"
        )


def verify_rows(
    target_logits: Tensor,
    draft: Draft | Sequence[Draft],
    affinity: Affinity,
    temperature: Numbers = 1.0,
    *,
    allowed: Tensor | None = None,
    logprobs: Any = None,
    method: Any = "token",
    **others: Any,
) -> Verified | None:
    """Verify drafts that lie in rows; None where something else is given, for the other way."""
    drafts = (draft,) if isinstance(draft, Draft) else draft
    last = drafts[-1] if isinstance(drafts, list | tuple) and drafts else None
    if not isinstance(last, Draft) or last.rows is None or others.keys() - _LIMITS:
        return None
    rows, length = last.rows, last.offset + last.tokens.shape[1]
    if rows.step is not last.__dict__["step"]:
        return None
    name, device = "rdk_cuda.verify", rows.logits.device
    limits: tuple[Any, ...] = (None,) * 3
    try:
        if len(drafts) == length and rows.hold(drafts):
            tokens = rows.tokens if length == rows.places else rows.tokens[:, :length]
        elif len(drafts) == 1 and last.offset == 0:
            tokens = last.tokens
        else:
            return None
        asked = LOGPROBS.get(logprobs), METHODS.get(method)
        if not all(isinstance(each, _PLAIN) for each in (temperature, *others.values())):
            return None  # arrays of another library, or lists
        if not isinstance(temperature, Tensor):
            temperature = temperatures(name, temperature, (rows.slots,), device)
        if others:
            given: dict[str, Any] = {limit: others.get(limit) for limit in LIMITS}
            limits = row_limits(name, **given, shape=(rows.slots,), device=device)
        return Verified(
            *operators.verify_step(
                target_logits,
                rows.logits,
                rows.stats,
                tokens,
                temperature,
                last.temperature,
                rows.step_keys,
                last.positions,
                *affinity.by_target,
                rows.dynamic_tokens,
                rows.dynamic_logits,
                *limits,
                allowed,
                *asked,
            )
        )
    except _REFUSED:
        return None
