"""Neither torch's default dtype nor its default device changes what the package computes.

Inputs are made under torch's own defaults: tensors when this file is imported, models in a case's
first run. Each case then runs under others and must give the same bits on the same device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rdk_cuda
from rdk_cuda import (
    Affinity,
    CombinedTokens,
    Draft,
    RecentTokens,
    ScreenedTokens,
    SuccessorCounts,
    SuccessorTable,
    Vocabulary,
)
from rdk_cuda.calibration import cluster_pruned_tokens
from rdk_cuda.calibration.methods import BUILDERS, Pruning
from rdk_cuda.calibration.record import record
from rdk_cuda.decoding import DrafterTree, SpeculativeDecoder
from rdk_cuda.decoding.lengths import EntropyBound, Product
from rdk_cuda.decoding.trees import ancestors, depths
from rdk_cuda.drafter import prune_head
from rdk_cuda.evaluation.acceptance import measure_acceptance
from rdk_cuda.integrations import sglang, vllm
from rdk_cuda.integrations.draft_arena import DraftArena
from rdk_cuda.integrations.huggingface import Generate, HuggingFaceModel
from rdk_cuda.integrations.token_maps import read_token_map, write_d2t, write_hot_tokens
from tests.calibration.markov_pair import (
    TEMPERATURES,
    MarkovPair,
    material,
    windows,
)
from tests.calibration.test_methods import OPTIONS
from tests.integrations.pair import VOCABULARY as SMALL
from tests.integrations.pair import drafter, padded, pruned, target

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
DYNAMIC = torch.tensor([[[1, 8]] * 2] * 3, dtype=torch.int32)
HEAD = torch.randn(SIZE, 5, generator=RANDOM)
PAIR = MarkovPair.random()
DOCUMENTS = PAIR.documents()
MATERIAL = material(PAIR)
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


def files(folder: Path) -> list[Any]:
    AFFINITY.save(folder / "affinity")
    successors().save(folder / "table")
    write_d2t(KEPT, folder / "d2t.safetensors")
    write_hot_tokens(KEPT, folder / "hot.pt")
    (folder / "hot.txt").write_text("4\n0\n")
    np.save(folder / "hot.npy", np.array([4, 0]))
    maps = ("d2t.safetensors", "hot.pt", "hot.txt", "hot.npy")
    return [
        Affinity.load(folder / "affinity"),
        SuccessorTable.load(folder / "table"),
        *(read_token_map(folder / name, SIZE) for name in maps),
    ]


def successors() -> SuccessorTable:
    counts = SuccessorCounts(SIZE)
    counts.add([1, 3, 1, 5, 1, 3, 0, 8])
    counts.add_probs(SEEDS, CLUSTERS.clamp(min=0)[:3, None], MEAN[:3, None])
    return SuccessorTable.from_counts(counts, KEPT, width=2)


def sources() -> list[Any]:
    recent, table = RecentTokens(KEPT, width=2), successors()
    both = CombinedTokens([recent, table], KEPT, width=3)
    rows = CLUSTERS.clamp(min=0)[None].repeat(2, 1)
    screen = ScreenedTokens.from_factors(KEPT, HEAD[KEPT.pruned], HEAD[:5], MEAN[:5], width=2)
    screened = CombinedTokens([recent, screen], KEPT, width=3)
    return [
        both([[1, 3, 8], [], [0, 5]]),
        both(rows),
        both(rows, SEEDS[:2]),
        screen.scores(HEAD),
        screened(rows, hidden=HEAD[:2]),
    ]


def trees() -> list[Any]:
    parents = torch.tensor([[-1, 0, -1, 1]])
    return [
        ancestors(parents),
        depths(parents),
        sglang.parents_of(DYNAMIC[:, 0], DYNAMIC[:, 1]),
    ]


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
        rdk_cuda.draft(LOGITS, RANKED, generator=torch.Generator().manual_seed(3)),
    ]


def serving() -> list[Any]:
    arena = DraftArena(RANKED, slots=4, draft_length=2)
    step = {"slots": SEEDS - 3, "temperature": MEAN[:3], "seeds": SEEDS, "positions": SEEDS}
    drafted = [arena.draft(LOGITS[:, place], place, **step) for place in range(2)]
    tokens = torch.stack(drafted, 1)
    chain = sglang.verify_chain(
        TARGET_LOGITS.flatten(0, 1),
        torch.cat([DYNAMIC[:, 0, :1], tokens], 1),
        POSITIONS.view(3, 3),
        SEEDS - 1,
        MEAN[:3, None],
        SEEDS,
        SEEDS,
        arena,
        req_pool_indices=SEEDS - 3,
    )
    processed = vllm.rejection_sample(
        TARGET_LOGITS.flatten(0, 1),
        torch.cat([DYNAMIC[:, 0, :1], tokens], 1).flatten(),
        torch.tensor([0, 3, 6, 9], dtype=torch.int32, device="cpu"),
        POSITIONS,
        SEEDS - 3,
        torch.tensor([0.7, 0.0, 1.1, 0.0], dtype=torch.float32, device="cpu"),
        POSITIONS[:4],
        2,
        arena,
    )
    return [tokens, chain, processed]


POSITIONS = torch.arange(9)


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
        length=lambda drafted: EntropyBound(0.2)(drafted) & Product(0.01)(drafted),
    )
    trees = SpeculativeDecoder(model, proposer=DrafterTree(small, affinity, nodes=3))
    return [
        each.generate([[1, 2], [3]], max_new_tokens=6, temperature=temperature, seeds=seeds).tokens
        for each in (decoding, trees, SpeculativeDecoder(model, None, affinity, draft_length=0))
        for temperature, seeds in ((0.7, 3), ([0.7, 0.0], [1, 2]), (0.7, range(40, 42)))
    ]


@cache
def prompt_and_generate() -> tuple[dict[str, Tensor], Generate]:
    """Made in the first of a case's two runs, under torch's own defaults."""
    return padded(4, 7), pruned(seed=3)


def generation() -> list[Any]:
    prompt, generate = prompt_and_generate()
    given = {"custom_generate": generate, "max_new_tokens": 12, "do_sample": True}
    return [target().generate(**prompt, temperature=0.7, **given)]


def calibration(folder: Path) -> list[Any]:
    head, prior = PAIR.full_head, PAIR.target_logits.softmax(-1).mean(0)
    kept = Vocabulary.most_likely(prior, 15)
    clusters = cluster_pruned_tokens(head[0], kept, prior, count=4)
    virtual = Affinity.virtual_tokens(kept, clusters, prior)
    read: list[Any] = []
    for _ in range(2):  # the second time from the file
        recording = record(
            PAIR.read,
            windows(DOCUMENTS),
            temperatures=TEMPERATURES,
            memory=1 << 26,
            context=64,
            state=folder / "state",
        )
        read.append(recording)
    pruning = Pruning(MATERIAL, kept, OPTIONS)
    methods = [pruning.method(name, 0.7) for name in BUILDERS]
    drafters = {0.7: [method.drafter for method in methods if method.drafter]}
    rates = measure_acceptance(PAIR.read, head, drafters, windows(DOCUMENTS[:2]))
    return [
        clusters,
        prune_head(*head, kept, virtual=virtual),
        read,
        [method.drafter for method in methods],
        [method.tuned for method in methods],
        rates,
    ]


CASES: dict[str, Callable[[Path], Any]] = {
    "constructors": lambda folder: constructors(),
    "files": files,
    "dynamic tokens": lambda folder: [successors(), sources()],
    "operators": lambda folder: operators(),
    "serving": lambda folder: serving(),
    "decoder": lambda folder: decoder(),
    "generate": lambda folder: generation(),
    "calibration": calibration,
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


DEFAULTS: dict[str, Callable[[], Any]] = {
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "with meta": lambda: torch.device("meta"),
    "set_default_device meta": lambda: default_device("meta"),
}


def tensors_in(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor, number and text within, and where it is."""
    if dataclasses.is_dataclass(value) or isinstance(value, SuccessorTable):
        value = vars(value)
    if isinstance(value, Mapping):
        for name, entry in value.items():
            yield from tensors_in(entry, f"{at}.{name}")
    elif isinstance(value, (list, tuple)):
        for place, entry in enumerate(value):
            yield from tensors_in(entry, f"{at}[{place}]")
    elif isinstance(value, (Tensor, int, float, str)):
        yield at, value


def same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    if (one.dtype, one.device, one.shape) != (other.dtype, other.device, other.shape):
        return False
    return torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30)) and torch.equal(
        one.isnan(), other.isnan()
    )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("defaults", DEFAULTS)
@pytest.mark.usefixtures("one_thread")
def test_results_are_the_same_bits_whatever_torch_defaults_to(
    case: str, defaults: str, tmp_path: Path
) -> None:
    folders = [tmp_path / name for name in ("ordinary", "changed")]
    for folder in folders:
        folder.mkdir()
    expected = list(tensors_in(CASES[case](folders[0])))
    with DEFAULTS[defaults]():
        found = CASES[case](folders[1])
    got = list(tensors_in(found))
    assert [at for at, _ in got] == [at for at, _ in expected]
    assert expected
    different = [
        at for (at, one), (_, other) in zip(expected, got, strict=True) if not same(one, other)
    ]
    assert not different
