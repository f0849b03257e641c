"""Anything legal: affinities by every constructor, logits of any shape, stride and dtype, batches.

Environment:
    HYPOTHESIS_PROFILE  thorough: many more examples, others in every run (default: the same few).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from random import Random

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.fuzz import changes
from tests.generators import Batch

PROFILES = {
    "repeatable": settings(deadline=None, derandomize=True, max_examples=150),
    "thorough": settings(deadline=None, max_examples=5000),
}
examples = PROFILES[os.environ.get("HYPOTHESIS_PROFILE", "repeatable")]

LARGE = (1024, 1025, 2100)
LAYOUTS = (
    changes.in_wider_rows,
    changes.every_second_row,
    changes.one_row_for_all,
    changes.at_an_odd_address,
)
# Where rows may overlap, one of them may be left without any finite logit.
ALL_LAYOUTS = (*LAYOUTS, changes.overlapping_rows)
MASSES = (0.0, 1e-12, 1e-3, 0.3, 1.0, 1.0, 7.0, 1e6)
TEMPERATURES = (0.0, 0.4, 0.7, 1.0, 1.0, 2.5)


@st.composite
def affinities(draw: st.DrawFn, large: bool = True) -> Affinity:
    """With at least one row that is not masked; a few of them over more than a chunk."""
    if large and draw(st.integers(0, 9)) == 0:
        kind = draw(st.sampled_from(generators.AFFINITIES))
        return generators.affinity(kind, draw(st.sampled_from(LARGE)), draw(st.integers(0, 9)))
    maker = draw(st.sampled_from([from_rows, virtual_tokens, first_order, intersection]))
    return draw(maker())


def masses(size: int) -> st.SearchStrategy[Tensor]:
    """``[size]`` float64, not all of them zero."""
    return (
        st.lists(st.sampled_from(MASSES), min_size=size, max_size=size)
        .filter(any)
        .map(lambda values: torch.tensor(values, dtype=torch.float64))
    )


@st.composite
def vocabularies(draw: st.DrawFn) -> Vocabulary:
    """Some target ids in any order, and drafter tokens that the target lacks."""
    size = draw(st.integers(1, 40))
    ids = draw(st.permutations(range(size)))[: draw(st.integers(1, size))]
    return Vocabulary(ids + [-1] * draw(st.integers(0, 3)), size)


@st.composite
def intersection(draw: st.DrawFn) -> Affinity:
    return Affinity.intersection(draw(vocabularies()))


@st.composite
def first_order(draw: st.DrawFn) -> Affinity:
    vocabulary = draw(vocabularies())
    tau = draw(st.sampled_from([1e-6, 0.01, 1.0, 100.0]))
    return Affinity.first_order(vocabulary, draw(masses(vocabulary.target_size)), tau)


@st.composite
def virtual_tokens(draw: st.DrawFn) -> Affinity:
    vocabulary = draw(vocabularies())
    clusters = torch.full((vocabulary.target_size,), -1)
    count = draw(st.integers(1, min(4, vocabulary.target_size)))
    for token in vocabulary.pruned.tolist():
        clusters[token] = draw(st.integers(-1, count - 1))
    offset = draw(st.sampled_from([0.0, 0.0, -1.5, 2.0, -math.inf]))
    return Affinity.virtual_tokens(
        vocabulary,
        clusters,
        draw(masses(vocabulary.target_size)),
        temperature=draw(st.sampled_from([0.5, 1.0, 2.0])),
        offset=offset,
    )


@st.composite
def from_rows(draw: st.DrawFn) -> Affinity:
    target_size, draft_size = draw(st.integers(1, 20)), draw(st.integers(1, 12))
    row = st.dictionaries(
        st.integers(0, target_size - 1), st.sampled_from(MASSES), max_size=min(6, target_size)
    )
    rows = draw(st.lists(row, min_size=draft_size, max_size=draft_size))
    rows[0] = rows[0] | {draw(st.integers(0, target_size - 1)): 1.0}  # not masked
    bias = st.lists(st.sampled_from([0.0, 0.0, -2.0, 1.5, -math.inf]), max_size=draft_size)
    biases = [0.0, *draw(bias)]
    biases = (biases + [0.0] * draft_size)[:draft_size]
    rank = draw(st.integers(0, 4))
    spread = prior = None
    if rank:
        spread = torch.stack([draw(masses(rank)) for _ in range(draft_size)])
        prior = torch.stack([draw(masses(target_size)) for _ in range(rank)])
    return Affinity.from_rows(
        rows, target_size=target_size, spread=spread, prior=prior, bias=torch.tensor(biases)
    )


@st.composite
def laid_out(
    draw: st.DrawFn,
    tensor: Tensor,
    layouts: Sequence[Callable[[Tensor, Random], Tensor]] = ALL_LAYOUTS,
) -> Tensor:
    """In memory in another way; rows may become equal or overlap."""
    layout = draw(st.sampled_from([None, *layouts]))
    return tensor if layout is None else layout(tensor, Random(draw(st.integers(0, 9))))


@st.composite
def draft_arguments(draw: st.DrawFn, made: Affinity) -> tuple[Tensor | None, ...]:
    """Of `rdk::draft`. Every row has a distribution."""
    shape = draw(st.sampled_from([(), (1,), (4,), (9,), (2, 3), (3, 1), (0,), (2, 1, 2)]))
    dtype, seed = draw(st.sampled_from(generators.DTYPES)), draw(st.integers(0, 999))
    count = math.prod(shape)
    scale = draw(st.sampled_from([0.0, 0.5, 2.0, 5.0]))
    rows = generators.logits(
        count,
        made.draft_size,
        seed,
        dtype=dtype,
        scale=scale,
        forbidden=draw(st.sampled_from([0.0, 0.3, 0.9])),
    )
    usable = int((made.bias > -math.inf).nonzero()[0])
    rows[:, usable] = rows[:, usable].nan_to_num(neginf=0.0)
    tokens = values = None
    if draw(st.booleans()):
        width = draw(st.sampled_from([0, 1, 4, 17]))
        tokens = generators.dynamic_tokens(count, width, made.target_size, seed)
        values = generators.logits(count, width, seed + 1, dtype=dtype, scale=scale)
        tokens = draw(laid_out(tokens.reshape(*shape, width)))
        values = draw(laid_out(values.reshape(*shape, width)))
    temperatures = draw(st.lists(st.sampled_from(TEMPERATURES), min_size=count, max_size=count))
    random = generators.generator(seed)
    return (
        draw(laid_out(rows.reshape(*shape, made.draft_size), LAYOUTS)),
        torch.tensor(temperatures).reshape(shape),
        torch.randint(-(2**63), 2**63 - 1, shape, generator=random),
        torch.randint(-(2**63), 2**63 - 1, shape, generator=random),
        *made.by_draft,
        tokens,
        values,
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Packed, with temperatures of each sequence's own; some tokens and rows are out of range."""
    lengths = draw(st.lists(st.integers(0, 4), max_size=6))
    made = generators.batch(
        draw(affinities()),
        lengths,
        draw(st.integers(0, 999)),
        dtype=draw(st.sampled_from(generators.DTYPES)),
        dynamic=draw(st.sampled_from([0, 0, 1, 5])),
        forbidden=draw(st.sampled_from([0.0, 0.3, 0.8])),
        scale=draw(st.sampled_from([0.5, 2.0])),
    )

    def integers(count: int, least: int, largest: int) -> Tensor:
        values = st.lists(st.integers(least, largest), min_size=count, max_size=count)
        return torch.tensor(draw(values), dtype=torch.int32)

    drafts = sum(lengths)
    if draw(st.integers(0, 2)) == 0:
        made.draft_token_ids = integers(drafts, -2, made.affinity.target_size + 1)
    if draw(st.integers(0, 2)) == 0:
        made.draft_rows = integers(drafts, -2, drafts + 1)
    made.max_draft = draw(st.sampled_from([made.max_draft, 0, 1, 2, 5]))
    each = st.lists(st.sampled_from(TEMPERATURES), min_size=made.size, max_size=made.size)
    made.target_temperature = torch.tensor(draw(each))
    made.draft_temperature = torch.tensor(draw(each))
    made.target_logits = made.target_logits.to(draw(st.sampled_from(generators.DTYPES)))
    for name in ("target_logits", "draft_logits", "dynamic_tokens", "dynamic_logits"):
        if getattr(made, name) is not None:
            setattr(made, name, draw(laid_out(getattr(made, name))))
    return made
