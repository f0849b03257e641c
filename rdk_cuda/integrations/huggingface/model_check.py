"""Whether a model computes in our cache what it does alone.

Models may ignore explicit positions or masks. Some with states have a form for many tokens that
begins at nothing whatever state there is, as Mamba's has in Transformers 5.24, or had one in an
earlier release. Logits may show little of it, as a state is one of many things that they depend on,
and in half precision nothing. So states are compared, too, also those of single mixers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...decoding import CausalModel
from .slot_cache import SlotCache

# In float32 and in half precision. Sound models are at 1e-7 and 1e-2, as they are without us.
_ALLOWED, _ALLOWED_WITH_STATES, _ALLOWED_BY_MIXERS = (1e-3, 0.1), (1e-4, 0.05), 0.01
_TOKENS = 12
# A model whose windows are longer is checked within them alone.
_CHECKED_WINDOW = 64
# Whether mixers read one token at a time, and whether their kernels run again alone.
_READINGS = ((False, True), (False, False), (True, False))


@torch.no_grad()
def check(fed: CausalModel, cache: Any, model: Any) -> None:
    """Compare what is fed with the plain forward, and choose how states are kept.

    Args:
        fed: what is checked, over this cache.
        cache: where there are states, `stepwise` and `gated` are set.
        model: the library's model behind both.

    Raises:
        ValueError: logits or states are wrong, or a context is too short to tell.
    """
    window = cache.layers.window or 0
    if fed.context < _TOKENS:
        raise ValueError(
            f"HuggingFaceModel: {type(model).__name__} reads {fed.context:.0f} tokens at most; "
            f"needs {_TOKENS}, with which its cache is checked"
        )
    count = _TOKENS + (window if window <= _CHECKED_WINDOW else 0)
    count = int(min(count, fed.context))
    readable = model.get_input_embeddings().weight.shape[0]
    ids = [token % readable for token in range(1, count + 1)]
    whole = torch.tensor([ids], device=fed.device, dtype=torch.int64)
    expected = [model(input_ids=whole, use_cache=False).logits[0]]
    readings: Any = [None]
    if cache.layers.recurrent and cache.layers.by_slots is None:
        fed.reset(1)
        fed.feed([ids], [len(ids)])
        expected += [state[0] for state in cache.states()]
        at_once = _tried(cache.newest.error_behind_states) <= _ALLOWED_BY_MIXERS
        readings = _READINGS if at_once else _READINGS[2:]
    is_half = cache.dtype not in (torch.float32, torch.float64)
    allowed = (_ALLOWED if readings == [None] else _ALLOWED_WITH_STATES)[is_half]
    errors = {}
    for reading in readings:
        if reading is None:
            error = _in_passes(fed, cache, ids, expected)
        else:
            cache.stepwise, cache.gated = reading
            error = _tried(lambda: _in_passes(fed, cache, ids, expected))
        if error > allowed and reading is not None:
            noise = _error(_one_by_one(fed, cache, ids), expected)
            allowed = max(allowed, min(10 * allowed, 4 * noise))
        if error <= allowed:
            return
        errors["one token" if reading and reading[0] else "several tokens"] = error
    found = " and ".join(f"{error:.2g} with {size} a pass" for size, error in errors.items())
    raise ValueError(
        f"HuggingFaceModel: logits or states of {type(model).__name__} differ from its plain "
        f"forward by {found} (allowed {allowed:.2g} of their norm): it does not go on from its "
        "cache, or does not follow explicit position_ids and a 4D mask, or, if head or "
        "return_hidden is used, its logits are not just its LM head applied to its last hidden "
        "state"
    )


def _tried(measured: Callable[[], float]) -> float:
    """The error, infinite where the model itself fails, as some do behind a state."""
    try:
        return measured()
    except torch.OutOfMemoryError:
        raise
    except Exception:  # whatever it raises
        return float("inf")


def _in_passes(fed: CausalModel, cache: SlotCache, ids: list[int], expected: list[Tensor]) -> float:
    """The error of two ragged sequences, rolled back within passes and to nothing."""
    wrong = ids[:1] * 2
    fed.reset(2)
    fed.feed([ids[:3] + wrong, []], [3, 0])
    fed.rollback([3, 0])
    fed.feed([ids[3:7] + wrong, ids[:5]], [6, 2])
    fed.rollback([6, 5])
    logits = fed.feed([ids[6:], ids[5:]], [len(ids) - 6, len(ids) - 5]).logits
    rows = [logits[0, : len(ids) - 6], logits[1, : len(ids) - 5]]
    found = ([row, *(state[b] for state in cache.states())] for b, row in enumerate(rows))
    return max(_error(each, expected) for each in found)


def _one_by_one(fed: CausalModel, cache: SlotCache, ids: list[int]) -> list[Tensor]:
    """As the library's own `generate` reads: how far that is off is the model's own noise."""
    fed.reset(1)
    logits = [fed.feed([[token]], [1]).logits[0] for token in ids]
    return [torch.cat(logits), *(state[0] for state in cache.states())]


def _error(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference of the last logits or of a state."""
    pairs = zip(found, expected, strict=True)
    return max(difference(one, other[len(other) - len(one) :]) for one, other in pairs)


def difference(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference over that of what is expected."""
    norm = max(float(expected.float().norm()), torch.finfo(torch.float32).tiny)
    return float((found.float() - expected.float()).norm()) / norm
