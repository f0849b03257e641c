"""What top-k, top-p, min-p and masks cost `draft` and `verify`, next to rows without them.

All K + 1 target rows of a sequence are read, with limits and without: drafts are the rows'
likeliest tokens, and q is even. So times can be compared. Transformers' warpers change the logits
first, and `verify` then judges these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from rdk_cuda import Affinity, Vocabulary
from rdk_cuda.recipes.errors import InputError

from ..commands import origin
from ..results import Row
from ..tables import figure, table
from . import generating
from .cases import DTYPES
from .workloads import mean_probs, operators

LENGTH, GENERATE = 5, "Generate"
BATCHES = (8, 64)
# Of the batches, those for which Transformers' warpers are timed: they take seconds.
WITH_PEERS = 8
SHAPES = ("like a model's", "flat")
LIMITS: dict[str, dict[str, float]] = {
    "top-k 50": {"top_k": 50},
    "top-p 0.9": {"top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "mask of half": {},
}
COLUMNS = (
    *("operator", "logits", "batch", "limits", "kept", "µs"),
    *("× untruncated", "Transformers, ×"),
)


@dataclass(frozen=True)
class Statistics:
    """Means and standard deviations of each token's log-probability, float32 `[V_t]`."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def read(cls, path: Path | None, size: int = 128256) -> Statistics:
        """Those of log-normal probabilities with the file's `mean_prob` and `var_prob`, float32
        `[V_t]` each in an .npz; without a file, of Zipf's law with a deviation of 2.5."""
        if path is None:
            mean = mean_probs(size)
            return cls(mean.log().float(), torch.full((size,), 2.5))
        try:
            with numpy.load(path, allow_pickle=False) as file:
                mean, variance = (
                    torch.from_numpy(file[name]).double() for name in ("mean_prob", "var_prob")
                )
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"{path}: {error}; needs an .npz with mean_prob and var_prob"
            ) from None
        squared = torch.log1p(variance / mean**2).nan_to_num(0)
        least = mean[mean > 0].min()
        middle = mean.clamp(min=least).log() - squared / 2
        return cls(middle.float(), squared.sqrt().float())


def truncation_rows(
    statistics: Statistics,
    dtypes: Sequence[str],
    measure: Callable[[dict[str, Callable[[int], object]]], Row],
) -> Iterator[tuple[str, Callable[[], Row]]]:
    """The name of each case, and what measures it."""
    for shape, dtype, batch in product(SHAPES, DTYPES, BATCHES):
        if dtype in dtypes:
            for operator, limits in product(("verify", "draft"), LIMITS):
                if operator == "draft" and not LIMITS[limits]:
                    continue
                name = f"{operator} {shape} {dtype} B={batch} {limits}"
                case = (shape, dtype, batch, operator, limits)
                yield name, partial(_row, statistics, *case, measure)
    for dtype, limits in product(dtypes, generating.LIMITS):
        size = statistics.mean.numel()
        yield f"{GENERATE} {dtype} {limits}", partial(_generate_row, size, dtype, limits, measure)


def _generate_row(
    size: int,
    dtype: str,
    limits: str,
    measure: Callable[[dict[str, Callable[[int], object]]], Row],
) -> Row:
    calls = generating.generate_calls(size, WITH_PEERS, limits, getattr(torch, dtype))
    return {
        "operator": GENERATE,
        "shape": "of a random model",
        "dtype": dtype,
        "batch": WITH_PEERS,
        "limits": limits,
        "target_size": size,
        "draft_length": generating.DRAFT_LENGTH,
        "kept_mean": None,
        **measure(calls),
    }


def _row(
    statistics: Statistics,
    shape: str,
    dtype: str,
    batch: int,
    operator: str,
    limits: str,
    measure: Callable[[dict[str, Callable[[int], object]]], Row],
) -> Row:
    rows = batch * (LENGTH + 1) if operator == "verify" else batch
    logits = logits_of(statistics, shape, rows).to(getattr(torch, dtype))
    calls, kept = (verify_calls if operator == "verify" else draft_calls)(logits, batch, limits)
    measured = measure(calls)
    return {
        "operator": operator,
        "shape": shape,
        "dtype": dtype,
        "batch": batch,
        "limits": limits,
        "target_size": logits.shape[1],
        "draft_length": LENGTH if operator == "verify" else None,
        "kept_mean": kept,
        **measured,
    }


def logits_of(statistics: Statistics, shape: str, rows: int) -> Tensor:
    """`[rows, V_t]` float32, always the same."""
    random = torch.Generator().manual_seed(0)
    normal = torch.randn(rows, statistics.mean.numel(), generator=random)
    if shape == "flat":
        return normal * 1e-3
    return statistics.mean + statistics.deviation * normal


def verify_calls(
    logits: Tensor, batch: int, limits: str
) -> tuple[dict[str, Callable[[int], object]], float]:
    """`verify` with the limits and without, and after Transformers' warpers; and how many tokens
    a row keeps."""
    rows, size = logits.shape
    affinity = identity(size)
    places = torch.arange(rows).view(batch, -1)[:, :-1].flatten()
    even = torch.tensor([[0.0, float(size)]])
    ones = torch.ones(batch)
    arguments = (
        logits.new_zeros(1, size), even, torch.zeros(places.numel(), dtype=torch.int32),
        logits[places].argmax(1), torch.arange(batch + 1, dtype=torch.int32) * LENGTH, ones, ones,
        torch.arange(batch), torch.arange(batch), *affinity.by_target, LENGTH,
    )  # fmt: skip

    def call(target: Tensor, **given: Tensor) -> object:
        return operators.verify(target, *arguments, **given)

    given = tensors(limits, batch)
    if not LIMITS[limits]:
        words = torch.full((rows, -(-size // 32)), 0x55555555, dtype=torch.int32)
        # The drafted tokens are allowed, so that all rows are read.
        likeliest = logits.argmax(1)
        at = (torch.arange(rows), likeliest // 32)
        words[at] |= torch.ones_like(likeliest).bitwise_left_shift(likeliest % 32).int()
        given = {"allowed": words}
        bits = words.unsqueeze(2) >> torch.arange(32, dtype=torch.int32) & 1
        mask = bits.flatten(1)[:, :size] == 0

    def warped(_: int) -> object:
        if not LIMITS[limits]:
            return call(logits.masked_fill(mask, -math.inf))
        scores = logits.float()
        for warper in warpers(limits):
            scores = warper(None, scores)
        return call(scores)

    calls: dict[str, Callable[[int], object]] = {
        "ours": lambda _: call(logits, **given),
        "untruncated": lambda _: call(logits),
    }
    if batch == WITH_PEERS:
        calls["transformers"] = warped
    return calls, kept_mean(logits, given)


def draft_calls(
    logits: Tensor, batch: int, limits: str
) -> tuple[dict[str, Callable[[int], object]], float]:
    """`draft` with the limits and without; and how many columns a row keeps."""
    affinity = identity(logits.shape[1])
    arguments = (logits, torch.ones(batch), torch.arange(batch), torch.arange(batch))
    given = tensors(limits, batch)
    calls: dict[str, Callable[[int], object]] = {
        "ours": lambda _: operators.draft(*arguments, *affinity.by_draft, **given),
        "untruncated": lambda _: operators.draft(*arguments, *affinity.by_draft),
    }
    return calls, kept_mean(logits, given)


def tensors(limits: str, batch: int) -> dict[str, Tensor]:
    """The limits as the operators take them."""
    dtypes = {"top_k": torch.int32, "top_p": torch.float32, "min_p": torch.float32}
    return {
        name: torch.full((batch,), value, dtype=dtypes[name])
        for name, value in LIMITS[limits].items()
    }


def warpers(limits: str) -> list[Any]:
    """Transformers' own, in vLLM's order."""
    from transformers import generation

    kinds = {
        "min_p": generation.MinPLogitsWarper,
        "top_k": generation.TopKLogitsWarper,
        "top_p": generation.TopPLogitsWarper,
    }
    return [kind(LIMITS[limits][name]) for name, kind in kinds.items() if name in LIMITS[limits]]


def kept_mean(logits: Tensor, given: dict[str, Tensor]) -> float:
    """How many columns of a row are left, on average, by the thresholds that `draft` returns."""
    logits = logits[:48]
    rows, size = logits.shape
    if "allowed" in given:
        return size / 2
    each = {name: value[:1].expand(rows).contiguous() for name, value in given.items()}
    ones, keys = torch.ones(rows), torch.arange(rows)
    stats = operators.draft(logits, ones, keys, keys, *identity(size).by_draft, **each)[1]
    return float((logits.float() >= stats[:, -1:]).sum(1).double().mean())


_identities: dict[int, Affinity] = {}


def identity(size: int) -> Affinity:
    """Of one vocabulary to itself, kept."""
    if size not in _identities:
        _identities[size] = Affinity.intersection(Vocabulary.identity(size))
    return _identities[size]


def summary(rows: Sequence[Row]) -> str:
    """Rows as a table."""
    return f"{origin(rows[-1])}\n\n{table(COLUMNS, map(cells, rows), 'llrlr')}"


def cells(row: Row) -> list[str]:
    """In the order of `COLUMNS`."""
    times = figure(row["median_us"]), figure(row["times_untruncated"])
    return [*case_cells(row), *times, times_transformers(row)]


def case_cells(row: Row) -> list[str]:
    """What was measured: operator, logits, batch, limits and how many columns they keep."""
    return [
        row["operator"],
        f"{row['shape']}, {row['dtype']}",
        str(row["batch"]),
        row["limits"],
        "" if row["kept_mean"] is None else figure(row["kept_mean"]),
    ]


def times_transformers(row: Row) -> str:
    """How much longer Transformers' way takes, where it was measured."""
    peers = row["peers"]
    return figure(peers["transformers"]["ratio"]) if "transformers" in peers else ""
