"""The steps of a real engine on its `DraftArena`: recorded there, and made again on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rdk_cuda import Affinity
from rdk_cuda.affinity.affinity import CANONICAL
from rdk_cuda.integrations.draft_arena import DraftArena

from .stand_in import moved

FOLDER = Path(__file__).resolve().parents[2] / "build" / "engines"  # where `make test-vllm` writes
NAMES = ("draft", "layout", "verify")


class Call(NamedTuple):
    name: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: Any


@contextmanager
def recording(file: Path) -> Iterator[None]:
    """Write what is asked of an arena, and what it answers, while the block runs."""
    calls: list[Call] = []
    arenas: list[DraftArena] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            patch.setattr(DraftArena, name, _recorded(name, calls, arenas))
        yield
    arena, rows = arenas[0], arenas[0].rows
    steps = {
        "affinity": {name: getattr(arena.affinity, name) for name in CANONICAL},
        "size": (arena.slots, arena.draft_length, rows.logits.dtype),
        "dynamic_width": 0 if rows.dynamic_tokens is None else rows.dynamic_tokens.shape[-1],
        "calls": [tuple(call) for call in calls],
    }
    torch.save(steps, file)


def _recorded(name: str, calls: list[Call], arenas: list[DraftArena]) -> Callable[..., Any]:
    own = getattr(DraftArena, name)

    def call(arena: DraftArena, *arguments: Any, **named: Any) -> Any:
        kept = _plain(arguments), _plain(named)
        result = own(arena, *arguments, **named)
        calls.append(Call(name, *kept, _plain(result)))
        arenas.append(arena)
        return result

    return call


def _plain(value: Any) -> Any:
    """A copy of tensors, lists and numbers alone, which is read without running anything."""
    if isinstance(value, np.ndarray | range):
        return list(map(int, value))
    if isinstance(value, dict):
        return {name: _plain(own) for name, own in value.items()}
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    return moved(value, torch.device("cpu"))


def replayed(file: Path, device: torch.device) -> Iterator[tuple[Call, Callable[[], Any]]]:
    """Each recorded call, and a function that makes it on the device, to be called in order."""
    steps = torch.load(file, weights_only=True)
    slots, draft_length, dtype = steps["size"]
    affinity = Affinity(**steps["affinity"]).to(device)
    width = steps["dynamic_width"]
    arena = DraftArena(affinity, slots, draft_length, dtype=dtype, dynamic_width=width)
    for each in steps["calls"]:
        call = Call(*each)
        own = getattr(arena, call.name)
        named = moved(call.named, device)
        yield call, partial(own, *moved(call.arguments, device), **named)


def differing(result: Any, expected: Any) -> tuple[int, int]:
    """How many integers of the results differ, and how many there are."""
    if isinstance(expected, Tensor):
        counts = not expected.is_floating_point()
        return int((result.cpu() != expected).sum()) * counts, expected.numel() * counts
    if isinstance(expected, tuple):
        pairs = [differing(*own) for own in zip(result, expected, strict=True)]
        return sum(own for own, _ in pairs), sum(own for _, own in pairs)
    return int(result != expected), 1
