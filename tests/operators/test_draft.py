"""`rdk::draft` draws what the reference draws from the same random words, and keeps its stats."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import rdk_cuda  # noqa: F401  (registers torch.ops.rdk)
from rdk_cuda import reference
from rdk_cuda.affinity import Affinity
from rdk_cuda.vocabulary import Vocabulary
from tests import generators
from tests.tolerances import DISAGREEING_DRAWS, assert_as_exact_as_torch, assert_same_draws

pytestmark = pytest.mark.usefixtures("device")


def arguments(
    affinity: Affinity,
    rows: int,
    *,
    dtype: torch.dtype = torch.float32,
    temperature: float = 1.0,
    dynamic: int | None = None,
    forbidden: float = 0.0,
) -> tuple[Tensor | None, ...]:
    random = generators.generator(7)
    tokens = values = None
    if dynamic is not None:
        tokens = generators.dynamic_tokens(rows, dynamic, affinity.target_size)
        values = generators.logits(rows, dynamic, seed=1, dtype=dtype)
    return (
        generators.logits(rows, affinity.draft_size, dtype=dtype, forbidden=forbidden),
        torch.full((rows,), temperature),
        torch.randint(-(2**63), 2**63 - 1, (rows,), generator=random),
        torch.randint(0, 2**33, (rows,), generator=random),
        *affinity.by_draft,
        tokens,
        values,
    )


def assert_drafts_as_the_reference(*arguments: Tensor | None) -> None:
    tokens, stats = torch.ops.rdk.draft(*arguments)
    trace = reference.Trace()
    expected, exact = reference.draft(*arguments, dtype=torch.float64, trace=trace)
    assert tokens.dtype == torch.int64
    assert_same_draws(tokens, expected, trace.margins(tokens.numel()))
    _, by_torch = reference.draft(*arguments)
    for column in range(stats.shape[-1]):
        assert_as_exact_as_torch(stats[..., column], by_torch[..., column], exact[..., column])


@pytest.mark.fast_in_the_emulator(kind=("mixed-2",))
@pytest.mark.parametrize("dtype", generators.DTYPES, ids=str)
@pytest.mark.parametrize("kind", [*generators.AFFINITIES, "mixed-4"])
def test_every_affinity_and_dtype(kind: str, dtype: torch.dtype) -> None:
    affinity = generators.affinity(kind, 2500)
    # Masked columns aside, a row may have no finite logit left; the reference knows.
    assert_drafts_as_the_reference(
        *arguments(affinity, 60, dtype=dtype, temperature=0.8, dynamic=9, forbidden=0.1)
    )
    assert_drafts_as_the_reference(*arguments(affinity, 20, dtype=dtype))


@pytest.mark.fast_in_the_emulator
def test_a_branch_has_words_of_its_own_and_branch_zero_those_of_a_chain() -> None:
    """Also the words of the second try, which a prior's token is drawn with; modulo 2^24."""
    given = arguments(generators.affinity("mixed-3", 2500), 40, dynamic=9)
    nothing = (None, None, None)
    chain = torch.ops.rdk.draft(*given)
    zeros = torch.zeros(40, dtype=torch.int32)
    assert all(map(torch.equal, torch.ops.rdk.draft(*given, *nothing, zeros), chain))
    assert all(map(torch.equal, torch.ops.rdk.draft(*given, *nothing, zeros + 2**24), chain))
    branches = torch.arange(40, dtype=torch.int32) * 2**18 - 2**22
    assert_drafts_as_the_reference(*given, *nothing, branches)
    tokens, stats = torch.ops.rdk.draft(*given, *nothing, branches + 1)
    assert torch.equal(stats, chain[1])
    assert (tokens != chain[0]).sum() > 20


@pytest.mark.parametrize("size", [1, 2, 31, 1023, 1024, 1025, 8193, 33 * 1024 + 1])
@pytest.mark.parametrize("kind", ["identity", "virtual", "mixed-3"])
def test_sizes_around_lanes_chunks_and_warps(kind: str, size: int) -> None:
    """`identity` has as many drafter columns as targets; `virtual` half as many, and long rows."""
    assert_drafts_as_the_reference(*arguments(generators.affinity(kind, size), 3, dynamic=5))


@pytest.mark.parametrize("size", [128256, 151936, 262144])
def test_large_vocabularies(size: int) -> None:
    affinity = generators.affinity("virtual", size)
    assert_drafts_as_the_reference(*arguments(affinity, 3, dtype=torch.bfloat16, dynamic=300))


@pytest.mark.not_on("small-batches")
@pytest.mark.ci
def test_ten_thousand_draws() -> None:
    """Fewer than 5 in 10,000 tokens may differ, each at a boundary within 1e-5 (section 5)."""
    given = arguments(generators.affinity("mixed-2", 60), 10_000, dynamic=3)
    tokens, _ = torch.ops.rdk.draft(*given)
    trace = reference.Trace()
    expected, _ = reference.draft(*given, dtype=torch.float64, trace=trace)
    assert_same_draws(tokens, expected, trace.margins(10_000))
    assert int((tokens != expected).sum()) < DISAGREEING_DRAWS * 10_000


def test_margins_tell_how_far_a_draw_was_from_another_token() -> None:
    """Two equal halves: the margin is the distance of the column's uniform from a half."""
    given = arguments(generators.affinity("identity", 2), 50)
    trace = reference.Trace()
    tokens, _ = reference.draft(torch.zeros(50, 2), *given[1:], dtype=torch.float64, trace=trace)
    words = reference.philox(given[2], given[3], reference.DRAFT, 0)[1]
    distance = (words >> 8).double() / 2**24 - 0.5
    assert torch.equal(tokens, (distance >= 0).long())
    torch.testing.assert_close(trace.margins(50), distance.abs())


# ------------------------------------------------------------------------------- temperature zero


@pytest.mark.fast_in_the_emulator(kind=("virtual",))
@pytest.mark.parametrize("kind", generators.AFFINITIES)
@pytest.mark.parametrize("dynamic", [None, 9])
def test_temperature_zero_is_greedy(kind: str, dynamic: int | None) -> None:
    # bfloat16 makes ties among 1250 columns likely.
    given = arguments(
        generators.affinity(kind, 2500), 40, dtype=torch.bfloat16, temperature=0.0, dynamic=dynamic
    )
    tokens, stats = torch.ops.rdk.draft(*given)
    expected, _ = reference.draft(*given, dtype=torch.float64)
    assert torch.equal(tokens, expected)
    assert not stats.any()


def greedy(affinity: Affinity, logits: Tensor, *dynamic: Tensor) -> int:
    """The token that one row drafts at temperature 0."""
    integer = torch.zeros(1, dtype=torch.int64)
    tokens, _ = torch.ops.rdk.draft(
        logits[None], torch.zeros(1), integer, integer, *affinity.by_draft, *dynamic
    )
    return int(tokens)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0, -math.inf]), min_size=1, max_size=8), st.data())
def test_greedy_ties_go_to_the_lowest_column_static_before_dynamic(
    values: list[float], data: st.DataObject
) -> None:
    size, static = len(values), data.draw(st.integers(1, len(values)))
    logits = torch.full((size,), -math.inf)
    logits[:static] = torch.tensor(values[:static])
    # Dynamic column c stands for token size - 1 - c, so that columns and tokens differ in order.
    tokens = torch.arange(size - 1, static - 1, -1, dtype=torch.int32)
    dynamic = tokens[None], torch.tensor(values[static:])[None]
    best = max(values)
    column = values.index(best)
    expected = column if column < static else int(tokens[column - static])
    drafted = greedy(Affinity.intersection(Vocabulary.identity(size)), logits, *dynamic)
    assert drafted == (-1 if best == -math.inf else expected)


@pytest.mark.parametrize(
    "columns", [(0, 1), (7, 8), (255, 256), (5, 1023), (1023, 1024), (9, 2499)]
)
def test_a_greedy_tie_between_lanes_and_chunks_goes_to_the_lower_column(
    columns: tuple[int, int],
) -> None:
    logits = generators.logits(1, 2500)[0]
    logits[list(columns)] = 50.0
    assert greedy(generators.affinity("identity", 2500), logits) == columns[0]


# ---------------------------------------------------------------------- rare tokens are reachable


@pytest.mark.not_on("small-batches")
@pytest.mark.parametrize("entries", [2, 40])
def test_a_token_of_the_smallest_mass_can_be_drawn(entries: int) -> None:
    """A mass of 2^-32 is drawn by the last random word and only by it.

    Kernels search rows of 32 entries and more in another way.
    """
    row = {**dict.fromkeys(range(entries - 2), 1.0), entries - 2: 2.0**32, entries - 1: 1.0}
    affinity = Affinity.from_rows([row], target_size=entries)
    rows = 20_000
    seeds, zeros = torch.arange(rows), torch.zeros(rows, dtype=torch.int64)
    words = reference.philox(seeds, zeros, reference.DRAFT, 0)[2]
    # Move the boundary to the largest word that occurs, so that one row in 20,000 draws the last.
    moved = affinity.row_cdf.clone()
    assert len(moved) == entries
    moved[-2] = int(words.max())
    given = list(affinity.by_draft)
    given[3] = moved
    tokens, _ = torch.ops.rdk.draft(torch.zeros(rows, 1), torch.ones(rows), seeds, zeros, *given)
    assert torch.equal(tokens, torch.searchsorted(moved, words, right=True))
    assert int((tokens == entries - 1).sum()) == 1


# -------------------------------------------------------------------------------------- division


def pairs_to_divide() -> tuple[Tensor, Tensor]:
    """Logits and temperatures whose quotients are finite: ordinary, huge and subnormal ones."""
    count = 2000
    generator = torch.Generator().manual_seed(9)
    logits = torch.randn(count, generator=generator) * 20
    exponents = torch.empty(count).uniform_(-149, 128, generator=generator)
    exponents[: count // 2].uniform_(-7, 7, generator=generator)
    exponents[-count // 5 :].uniform_(125, 128, generator=generator)
    temperature = torch.exp2(exponents.double()).float().clamp(2.0**-149, 3.4e38)
    logits[exponents < -118] *= 2.0**-40
    assert (logits / temperature).isfinite().all()
    return logits, temperature


def test_a_quotient_of_a_logit_has_at_most_two_roundings(device: str) -> None:
    """The CPU divides. Kernels multiply by the reciprocal, both rounded to float32; at extreme
    temperatures a power of 2 comes between.

    In a row of one column, the largest z of its stats is that column's.
    """
    logits, temperature = pairs_to_divide()
    affinity, words = generators.affinity("identity", 1), torch.zeros(2000, dtype=torch.int64)
    z = torch.ops.rdk.draft(logits[:, None], temperature, words, words, *affinity.by_draft)[1][:, 0]
    exact = logits.double() / temperature.double()
    error = (z.double() - exact).abs()
    assert (error <= exact.abs() * (2.0**-23 + 2.0**-48) + 2.0**-149).all()
    if device != "cpu":
        usual = (temperature >= 2.0**-126) & (temperature <= 2.0**126)
        assert torch.equal(z[usual], (logits * (1 / temperature))[usual])
