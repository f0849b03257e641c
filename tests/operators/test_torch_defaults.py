"""Neither torch's default dtype nor its default device changes what the package computes.

Inputs are made under torch's own defaults: tensors when this file is imported, models in a case's
first run. Each case then runs under others and must give the same bits on the same device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import Affinity, Draft, RecentTokens, Vocabulary
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder
from rdk_cuda.decoding.lengths import Classifier
from rdk_cuda.decoding.trees import ancestors, depths
from rdk_cuda.integrations.huggingface import HuggingFaceModel
from rdk_cuda.labs.sglang_trees import parents_of
from tests.integrations.pair import VOCABULARY as SMALL
from tests.integrations.pair import drafter, target
from tests.tolerances import assert_same_bits

pytestmark = pytest.mark.night

RANDOM = torch.Generator().manual_seed(5)
SIZE = 9
KEPT = Vocabulary([4, 0, 7, 2], SIZE)
MEAN = torch.rand(SIZE, generator=RANDOM)
OMEGA = torch.rand(SIZE, SIZE, generator=RANDOM)
CLUSTERS = torch.tensor([-1, 0, -1, 0, -1, 1, 1, -1, 1])
LOGITS = torch.randn(3, 2, 4, generator=RANDOM)
TARGET_LOGITS = torch.randn(3, 3, SIZE, generator=RANDOM)
SEEDS = torch.tensor([3, 4, 5])
PARENTS = torch.tensor([[-1, 0, -1, 1]])
DYNAMIC = torch.tensor([[[1, 8]] * 2] * 3, dtype=torch.int32)
HEAD = torch.randn(SIZE, 5, generator=RANDOM)
WEIGHTED = [{0: 0.7, 3: 0.1}, {2: 1.0}]


def affinity() -> Affinity:
    return Affinity.virtual_tokens(KEPT, CLUSTERS, MEAN, offset=[0.1, 0.7])


AFFINITY, RANKED = affinity(), Affinity.first_order(KEPT, MEAN, 0.1, keep=0.7)


def constructors() -> list[Any]:
    scores = [0.30001, 0.30002, 0.29999, 0.1]
    return [
        Vocabulary.identity(4),
        Vocabulary([1, 0], 3),
        Vocabulary.most_likely(scores, 2, always=[3]),  # type: ignore[arg-type]  a plain list
        Vocabulary.between({b"a": 0, b"b": 1}, {b"b": 0, b"ab": 1}),
        KEPT.coverage(MEAN),
        affinity(),
        Affinity.intersection(KEPT),
        Affinity.between({b"a": 0, b"b": 1}, {b"b": 0, b"ba": 1}),
        Affinity.first_order(KEPT, MEAN, 0.1, keep=0.7),
        Affinity.covariance(KEPT, OMEGA, 0.3, keep=[0.1, 0.2, 0.3, 0.7]),
        Affinity.covariance(KEPT, OMEGA.to_sparse(), 0.3),
        Affinity.cold_mass(KEPT, MEAN),
        Affinity.from_rows(WEIGHTED, target_size=4),
        Affinity.from_rows(OMEGA),
        AFFINITY.dense(),
        AFFINITY.expectation(OMEGA),
        RANKED.to("cpu"),
    ]


def trees() -> list[Any]:
    return [ancestors(PARENTS), depths(PARENTS), parents_of(DYNAMIC[:, 0], DYNAMIC[:, 1])]


def operators() -> list[Any]:
    dynamic = {"dynamic_tokens": DYNAMIC, "dynamic_logits": LOGITS[..., :2].contiguous()}
    first = rdk_cuda.draft(LOGITS[:, 0], RANKED, 0.7, seeds=3, positions=[4, 5, 6])
    second = rdk_cuda.draft(LOGITS[:, 1], RANKED, after=first)
    whole = rdk_cuda.draft(LOGITS, RANKED, [0.7, 0.3, 1.1], seeds=SEEDS, positions=0, **dynamic)
    copied = Draft.without_distribution(DYNAMIC[:, 0], seeds=[1, 2, 3], positions=0)
    return [
        rdk_cuda.redistribute(LOGITS, RANKED, 0.7),
        rdk_cuda.redistribute(LOGITS, RANKED, [0.7, 0.3, 1.1], **dynamic),
        rdk_cuda.gather_logits(HEAD[:3, :5], HEAD, DYNAMIC[:, 0].contiguous()),
        first,
        whole,
        copied,
        rdk_cuda.verify(TARGET_LOGITS, [first, second], RANKED, 0.7),
        rdk_cuda.verify(TARGET_LOGITS, whole, RANKED, (0.7, 0.3, 1.1)),
        rdk_cuda.verify(TARGET_LOGITS, copied, RANKED, 0.7),
        rdk_cuda.verify_tree(
            TARGET_LOGITS, DYNAMIC[:, 0], DYNAMIC[0, 0], 0.7, seeds=SEEDS, positions=0
        ),
        rdk_cuda.verify_tree(
            TARGET_LOGITS, DYNAMIC[:, 0], DYNAMIC[:, 0], seeds=3, positions=0, max_depth=1
        ),
        *trees(),
    ]


def decoder() -> list[Any]:
    model, affinity = HuggingFaceModel(target()), Affinity.intersection(SMALL)
    weight = drafter().get_output_embeddings().weight.detach()
    small = HuggingFaceModel(drafter(), head=weight[SMALL.draft_ids])
    decoding = SpeculativeDecoder(
        model,
        small,
        affinity,
        draft_length=2,
        vocabulary=SMALL,
        dynamic_tokens=RecentTokens(SMALL, width=2),
        full_head=(weight, None),
        length=Classifier((0.8, 0.2, 0.1, -0.5, 1.2), 0.01),
    )
    trees = SpeculativeDecoder(model, proposer=DrafterTree(small, affinity, nodes=3))
    return [
        each.generate([[1, 2], [3]], max_new_tokens=6, temperature=temperature, seeds=seeds).tokens
        for each in (decoding, trees, SpeculativeDecoder(model, None, affinity, draft_length=0))
        for temperature, seeds in ((0.7, 3), ([0.7, 0.0], [1, 2]), (0.7, range(40, 42)))
    ]


CASES: dict[str, Callable[[], Any]] = {
    "constructors": constructors,
    "operators": operators,
    "decoder": decoder,
}


@contextmanager
def defaults(dtype: torch.dtype = torch.float32, device: str | None = None) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


DEFAULTS: dict[str, Callable[[], Any]] = {
    "float64": lambda: defaults(torch.float64),
    "bfloat16": lambda: defaults(torch.bfloat16),
    "with meta": lambda: torch.device("meta"),
    "set_default_device meta": lambda: defaults(device="meta"),
}


def tensors_in(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor, number and text within, and where it is."""
    if dataclasses.is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from tensors_in(entry, f"{at}.{name}")
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            yield from tensors_in(entry, f"{at}[{place}]")
    elif isinstance(value, (Tensor, int, float, str)):
        yield at, value


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", DEFAULTS)
@pytest.mark.usefixtures("one_thread")
def test_results_are_the_same_bits_whatever_torch_defaults_to(case: str, name: str) -> None:
    expected = dict(tensors_in(CASES[case]()))
    with DEFAULTS[name]():
        made = CASES[case]()
    found = dict(tensors_in(made))
    assert expected
    assert list(found) == list(expected)
    for at, value in expected.items():
        if isinstance(value, Tensor):
            assert found[at].device == value.device, at
            assert_same_bits(found[at], value, at)
        else:
            assert found[at] == value, at
