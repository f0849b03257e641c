"""`rdk::name_tokens` names what its reference does, wherever a row's text lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from tests import generators

pytestmark = pytest.mark.usefixtures("device")

SIZE = 300


def texts(rows: int, length: int, seed: int = 0, size: int = SIZE) -> dict[str, Any]:
    """Repetitive contexts of unequal lengths, with ids that are no tokens, what a step has decided
    and drafted, and a table of successors. Some slots, lengths and offsets lie outside."""
    random = generators.generator(seed)
    ids = (torch.randn(rows + 2, length, generator=random) * size / 8).long()
    ids[:, ::11] = 2**40
    decided = torch.randint(0, size, (rows, 40), generator=random)
    offsets = torch.randint(-size, 21 * size, (size + 1,), generator=random).sort().values
    return {
        "contexts": ids,
        "pruned": torch.rand(size, generator=random) < 0.8,
        "successor_offsets": offsets.int(),
        "successors": torch.randint(0, size, (20 * size,), generator=random).int(),
        "decided": decided.where(torch.arange(40) < 13 * torch.arange(rows)[:, None], -1),
        "drafts": torch.randint(0, size, (rows + 1, 4), generator=random),
        "lengths": torch.randint(-length, 3 * length, (rows + 2,), generator=random),
        "slots": torch.arange(rows + 2, 2, -1),  # the first has none, the second's has no drafts
        "place": 3,
    }


def assert_same(given: dict[str, Any], recent: int, window: int, width: int) -> torch.Tensor:
    given = given | {"recent": recent, "window": window, "width": width}
    named: torch.Tensor = torch.ops.rdk.name_tokens(**given)
    assert torch.equal(named, reference.name_tokens(**given))
    return named


@pytest.mark.fast_in_the_emulator
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_every_window_and_width(dtype: torch.dtype) -> None:
    """Around a warp and what it has under way; the sources alone and together; texts in parts."""
    given = texts(rows=5, length=600)
    given["contexts"] = given["contexts"].clamp(max=2**31 - 1).to(dtype)
    for recent, window, width in [(8, 31, 40), (32, 300, 128), (600, 600, 300), (3, 600, 3)]:
        assert (assert_same(given, recent, window, width)[:, 0] >= 0).any()
        alone = {name: given[name] for name in ("contexts", "pruned")}
        assert_same({**alone, "successor_offsets": None, "successors": None}, recent, window, width)
        table = {name: given[name] for name in ("contexts", "successor_offsets", "successors")}
        assert_same({**table, "pruned": None}, 0, 1, width)


def test_more_names_than_shared_memory_holds() -> None:
    """And each once: a control of the table in the workspace, with places that many tokens want."""
    given = texts(rows=2, length=6_000, size=20_000) | {"lengths": None}
    named = assert_same(given, recent=4_000, window=6_000, width=5_000)
    assert (named >= 0).sum(1).max() > 1_000


@pytest.mark.not_on("cuda")  # to which it would be copied
def test_ids_that_do_not_fit_the_result_are_refused() -> None:
    pruned = torch.from_numpy(np.zeros(2**31 + 1, bool))  # pages that nobody touches
    with pytest.raises(RuntimeError, match=r"pruned is of 2147483649 tokens, but needs V_t from"):
        torch.ops.rdk.name_tokens(torch.tensor([[2**31]]), pruned, None, None, 1, 1, 1)
