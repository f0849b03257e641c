"""Every constructor is the sampler that DESIGN section 2 says it is. RDK's are in test_rdk."""

import math
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rdk_cuda
from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.affinity.fixed_point import ONE
from rdk_cuda.reference import dense
from rdk_cuda.vocabulary import Vocabulary

NAN, INF = math.nan, math.inf
UNIT = 1 / ONE
SEEDS = st.integers(0, 10_000)
EVERY = settings(max_examples=30, deadline=None, derandomize=True)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def mean_probs(size, seed=0):
    return torch.rand(size, generator=generator(seed), dtype=torch.float64).pow(3) + 1e-9


def same(ours, theirs):
    tensors = [[a.bias, *a.by_draft[1:], *a.by_target[1:]] for a in (ours, theirs)]
    return all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


def assert_rows_sum_exactly(affinity):
    """As whole numbers of 2^-32, where the row is not masked."""
    ends = torch.nn.functional.pad(affinity.row_cdf, (1, 0))[affinity.row_offsets[1:].long()]
    ends = torch.where(affinity.row_offsets.diff() > 0, ends, 0)
    if affinity.rank:
        ends = affinity.spread_cdf[:, -1]
    assert torch.equal(ends, torch.where(affinity.bias == -INF, 0, ONE))
    assert affinity.prior_cdf[:, -1].tolist() == [ONE] * affinity.rank


def assert_is(affinity, matrix):
    """`A` is `matrix`, and the operator redistributes by it.

    But for a unit of rounding for S, one for the priors with their shares, one for a second prior.
    """
    close = max(2, 1 + affinity.rank) * UNIT
    matrix = torch.as_tensor(matrix, dtype=torch.float64)
    assert_rows_sum_exactly(affinity)
    assert affinity.dense().dtype == torch.float64
    assert float((affinity.dense() - matrix).abs().max()) <= close
    logits = torch.randn(3, affinity.draft_size, generator=generator(0))
    q = torch.ops.rdk.redistribute(logits, torch.ones(3), *affinity.by_target, affinity.row_top)
    probs = torch.softmax(logits.double() + affinity.bias.double(), 1)
    torch.testing.assert_close(
        q.double(), dense.exact_redistribute(probs, matrix), rtol=1e-5, atol=close
    )


@st.composite
def vocabularies(draw):
    """Any order, a part of the target's tokens, some drafter tokens that it lacks."""
    size = draw(st.integers(1, 40))
    order = draw(st.permutations(range(size)))
    kept = order[: draw(st.integers(0, size))]
    lacking = draw(st.integers(0 if kept else 1, 3))
    ids = draw(st.permutations([*kept, *[-1] * lacking]))
    return Vocabulary(ids, size)


@EVERY
@given(vocabularies().filter(lambda vocabulary: vocabulary.kept.numel() > 0))
def test_intersection_maps_shared_tokens_to_themselves_and_masks_the_others(vocabulary):
    ids = vocabulary.draft_ids
    affinity = Affinity.intersection(vocabulary)
    expected = torch.zeros(vocabulary.draft_size, vocabulary.target_size)
    expected[ids >= 0, ids[ids >= 0]] = 1
    assert torch.equal(affinity.dense(), expected.double())
    assert torch.equal(affinity.bias, torch.where(ids >= 0, 0.0, -INF))
    assert torch.equal(affinity.row_top.long(), ids)
    assert_is(affinity, expected)


# ------------------------------------------------------------------------------- virtual tokens


@EVERY
@given(vocabularies().filter(lambda vocabulary: vocabulary.pruned.numel() > 0), SEEDS)
def test_cold_mass_is_one_more_row_for_all_that_is_pruned(vocabulary, seed):
    mean = mean_probs(vocabulary.target_size, seed)
    mean[vocabulary.pruned[1:2]] = 0  # which then cannot be drafted
    affinity = Affinity.cold_mass(vocabulary, mean * 5)  # normalised inside
    assert_is(affinity, dense.cold_mass(vocabulary.draft_ids, mean))
    assert affinity.nnz == vocabulary.kept.numel()
    masked = torch.cat([vocabulary.draft_ids < 0, torch.tensor([False])])
    assert torch.equal(affinity.bias, torch.where(masked, -INF, 0.0))
    # One virtual token is the same map, with the entropy of what it stands for as a bias.
    clusters = torch.full_like(mean, -1).long().index_fill(0, vocabulary.pruned, 0)
    one = Affinity.virtual_tokens(vocabulary, clusters, mean)
    assert float((affinity.dense() - one.dense()).abs().max()) <= UNIT
    entropy = torch.special.entr(affinity.dense()[-1]).sum()
    assert float(one.bias[-1]) == pytest.approx(float(entropy), abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.05])
def test_virtual_tokens_share_out_their_cluster_by_sharpened_mean_probs(temperature):
    vocabulary, mean = Vocabulary([11, 2, 5, 7], target_size=25), mean_probs(25)
    clusters = torch.full((25,), -1)
    clusters[vocabulary.pruned] = torch.randint(0, 3, (21,), generator=generator(1))
    offset = torch.tensor([0.5, -0.25, -INF])
    affinity = Affinity.virtual_tokens(
        vocabulary, clusters, mean, temperature=temperature, offset=offset
    )
    expected, bias = torch.zeros(7, 25).double(), torch.zeros(7).double()
    expected[torch.arange(4), vocabulary.draft_ids] = 1
    for c in range(2):
        powers = torch.where(clusters == c, mean, 0.0) ** (1 / temperature)
        expected[4 + c] = w = powers / powers.sum()
        bias[4 + c] = torch.special.entr(w).sum() + offset[c]
    bias[6] = -INF  # switched off, so its row is empty
    assert_is(affinity, expected)
    torch.testing.assert_close(affinity.bias, bias.float(), rtol=0, atol=1e-6)
    assert affinity.row_top[6] == -1


def test_low_temperatures_do_not_underflow():
    clusters, mean = torch.tensor([-1, 0, 0, 0]), torch.tensor([0.9, 1e-30, 3e-30, 2e-30])
    affinity = Affinity.virtual_tokens(Vocabulary([0], 4), clusters, mean, temperature=1e-3)
    assert affinity.dense()[1].tolist() == [0, 0, 1, 0]


def test_clusters_without_members_or_probability_are_masked():
    clusters = torch.tensor([-1, 0, 2, 0, -1])  # no cluster 1; token 4 in none
    mean = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.1])  # none for cluster 2
    affinity = Affinity.virtual_tokens(Vocabulary([0], 5), clusters, mean)
    assert affinity.bias.tolist() == [0, 0, -INF, -INF]
    assert affinity.row_top.tolist() == [0, 1, -1, -1]
    assert affinity.col_offsets.diff().tolist() == [1, 1, 0, 0, 0]


def test_without_clusters_virtual_tokens_are_the_intersection():
    vocabulary = Vocabulary([3, -1], target_size=4)
    affinity = Affinity.virtual_tokens(vocabulary, torch.full((4,), -1), torch.ones(4))
    assert same(affinity, Affinity.intersection(vocabulary))


# --------------------------------------------------------------------------------- rows of your own


def random_rows():
    rows = torch.rand(6, 9, generator=generator(0)).double()
    rows *= torch.rand(6, 9, generator=generator(1)) < 0.4
    spread = torch.rand(6, 2, generator=generator(2)).double()
    rows[2], spread[2] = 0, 0
    return rows, spread, torch.rand(2, 9, generator=generator(3)).double()


def test_from_rows_normalises_and_keeps_the_sum_in_the_bias():
    rows, spread, prior = random_rows()
    bias = torch.tensor([0.0, 1.0, 2.0, -INF, -1.0, 0.0])
    affinity = Affinity.from_rows(rows, spread=spread, prior=prior, bias=bias)
    sums = rows.sum(1) + spread.sum(1)
    matrix = (rows + spread @ (prior / prior.sum(1, keepdim=True))) / sums[:, None]
    matrix[[2, 3]] = 0  # without mass, and masked by its bias
    assert_is(affinity, matrix)
    torch.testing.assert_close(affinity.bias, (bias + sums.log()).float())
    assert affinity.bias[2] == affinity.bias[3] == -INF
    assert affinity.row_top[2] == affinity.row_top[3] == -1


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_from_rows_takes_mappings_dense_and_sparse_tensors_alike():
    rows, _, _ = random_rows()
    mappings = [
        {int(x): float(row[x]) for x in row.nonzero().flatten().flip(0)}
        | {0: float(row[0])}  # an explicit zero is no entry
        for row in rows
    ]
    with torch.sparse.check_sparse_tensor_invariants(True):
        sparse = [rows.to_sparse(), rows.to_sparse_csr(), rows.to_sparse_csc()]
    given = [Affinity.from_rows(mappings, target_size=9), *map(Affinity.from_rows, sparse)]
    assert all(same(affinity, Affinity.from_rows(rows)) for affinity in given)


def test_from_rows_adds_up_repeated_coordinates_of_a_sparse_tensor():
    rows = torch.sparse_coo_tensor([[0, 0, 0], [1, 1, 2]], [1.0, 2.0, 1.0], (1, 3))
    affinity = Affinity.from_rows(rows)
    assert affinity.dense().tolist() == [[0, 0.75, 0.25]]
    assert affinity.bias.item() == pytest.approx(math.log(4))


def test_entries_below_half_a_unit_are_dropped_and_the_sum_stays_exact():
    affinity = Affinity.from_rows([{0: 1.0, 1: 1e-11, 2: 1.0}], target_size=3)
    assert affinity.row_targets.tolist() == [0, 2]
    assert affinity.row_cdf.tolist() == [ONE // 2, ONE]


def test_a_row_may_be_only_spread_or_only_entries():
    affinity = Affinity.from_rows(
        [{2: 1.0}, {}, {0: 1.0}],
        spread=torch.tensor([[0.0], [2.0], [1.0]]),
        prior=torch.tensor([[0.25, 0.25, 0.5]]),
    )
    assert affinity.dense().tolist() == [[0, 0, 1], [0.25, 0.25, 0.5], [0.625, 0.125, 0.25]]
    assert affinity.spread_cdf.tolist() == [[ONE], [ONE], [ONE]]
    assert affinity.row_cdf.tolist() == [ONE, ONE // 2]


# ---------------------------------------------------------------------------------------- refusals

ones, from_rows = torch.ones, Affinity.from_rows
THREE = {"target_size": 3}
ROWS = {
    r"rows\[0\] has 3: 1.0; needs target ids in \[0, 3\)": ([{3: 1.0}], THREE),
    r"rows\[1\] has -1: 1.0": ([{}, {-1: 1.0}], THREE),
    r"rows\[0\] has 1: -1.0; .* finite weights, none negative": ([{1: -1.0}], THREE),
    r"rows\[0\] has 1: nan": ([{1: NAN}], THREE),
    r"rows\[0\] has 1: inf": ([{1: INF}], THREE),
    r"rows\[0\] is \{1.5: 1.0\}": ([{1.5: 1.0}], THREE),
    "needs a mapping": ([[1.0]], THREE),
    "V_d >= 1": ([], THREE),
    "got no target_size; needs one V_t": ([{0: 1.0}], {}),
    "got .*'target_size': 4.* needs one V_t": (ones(2, 3), {"target_size": 4}),
    r"rows has shape \[3\]": (ones(3), {}),
    r"rows, entry \[0\] is -1.0": (-ones(1, 2), {}),
    r"rows, entry \[0\] is nan": (torch.full((1, 2), NAN), {}),
    "one of spread": (ones(1, 2), {"spread": ones(1, 1)}),
    r"spread has shape \[1, 2\].*needs real numbers \[1, 1\]": (
        ones(1, 2),
        {"spread": ones(1, 2), "prior": ones(1, 2)},
    ),
    "prior 0 has no mass": (ones(1, 2), {"spread": ones(1, 1), "prior": torch.zeros(1, 2)}),
    "R <= 4": (ones(1, 2), {"spread": ones(1, 5), "prior": ones(5, 2)}),
    r"bias\[0\] is nan": (ones(1, 2), {"bias": torch.tensor([NAN])}),
    r"bias\[0\] is inf": (ones(1, 2), {"bias": torch.tensor([INF])}),
    r"bias has shape \[1\]": (ones(2, 2), {"bias": ones(1)}),
}
COLD = {
    r"mean_probs has shape \[4\]": ones(4),
    r"mean_probs\[0\] is nan": torch.full((5,), NAN),
    r"mean_probs\[0\] is -1.0": -ones(5),
    "mean_probs has no mass on the 2 pruned tokens; needs some, or use": [1.0, 0, 1, 1, 0],
}
CLUSTERS, EVEN = [-1, 0, 0], [1, 1, 1]
VIRTUAL = {
    r"clusters\[0\] is 0; needs -1 to 2, and -1 of a token that is kept": ([0, -1, -1], EVEN, {}),
    r"clusters\[1\] is -2": ([-1, -2, 0], EVEN, {}),
    r"clusters\[2\] is 3; needs -1 to 2": ([-1, 0, 3], EVEN, {}),
    r"clusters has shape \[2\]": ([-1, 0], EVEN, {}),
    "dtype torch.float32": ([-1.0, 0.0, 0.0], EVEN, {}),
    r"mean_probs has shape \[2\]": (CLUSTERS, [1, 1], {}),
    r"mean_probs\[1\] is -1": (CLUSTERS, [1, -1, 1], {}),
    "temperature is 0.0": (CLUSTERS, EVEN, {"temperature": 0.0}),
    "temperature is nan": (CLUSTERS, EVEN, {"temperature": NAN}),
    r"offset has shape \[2\]": (CLUSTERS, EVEN, {"offset": [0.0, 0.0]}),
    r"bias\[1\] is nan": (CLUSTERS, EVEN, {"offset": NAN}),
    r"bias\[1\] is inf": (CLUSTERS, EVEN, {"offset": INF}),
}


def cold(mean):
    return Affinity.cold_mass(Vocabulary([2, -1, 0, 3], 5), torch.as_tensor(mean))


def virtual(clusters, mean, options):
    clusters, mean = torch.tensor(clusters), torch.tensor(mean)
    return Affinity.virtual_tokens(Vocabulary([0], 3), clusters, mean, **options)


REFUSED = {message: partial(from_rows, rows, **more) for message, (rows, more) in ROWS.items()}
REFUSED |= {message: partial(cold, mean) for message, mean in COLD.items()}
REFUSED |= {message: partial(virtual, *given) for message, given in VIRTUAL.items()}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_affinity_is_refused_by_name(message):
    with pytest.raises(AffinityError, match=message):
        REFUSED[message]()


KEPT = Vocabulary([0, 1], 4)
HUGE = torch.full((4,), 1e308, dtype=torch.float64)  # finite numbers, whose sum is not
OVERFLOWS = {
    "first_order: mean_probs": lambda: Affinity.first_order(KEPT, HUGE, 0.1),
    "cold_mass: mean_probs": lambda: Affinity.cold_mass(KEPT, HUGE),
    "Affinity: prior 0": lambda: from_rows([{0: 1.0}, {}], spread=ones(2, 1), prior=HUGE[None]),
    "from_rows: row 1": lambda: from_rows(torch.stack([HUGE / 4, HUGE])),
}


@pytest.mark.parametrize("message", OVERFLOWS)
def test_a_sum_that_overflows_is_refused_by_the_name_of_what_was_given(message):
    with pytest.raises(AffinityError, match=f"{message}.* divide its numbers by the largest"):
        OVERFLOWS[message]()


def test_the_cure_that_the_refusal_names_helps():
    scaled = Affinity.cold_mass(KEPT, HUGE / HUGE.max())
    assert_is(scaled, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.5, 0.5]])


def test_first_order_warns_where_it_loses_what_the_intersection_has() -> None:
    """A Zipf-like target of 16,384 tokens, 10 % kept: docs/samplers.md has the figures."""
    random, size, rows = torch.Generator().manual_seed(0), 16384, 32
    likely = -1.1 * torch.arange(1, size + 1).log()
    target = likely + 2 * torch.randn(rows, size, generator=random)
    drafter = target + torch.randn(rows, size, generator=random)
    p = torch.softmax(target, 1)
    vocabulary = Vocabulary.most_likely(p.mean(0), size // 10)

    def acceptance(affinity: Affinity) -> float:
        q = rdk_cuda.redistribute(drafter[:, vocabulary.draft_ids], affinity)
        return float(torch.minimum(p, q).sum(1).mean())

    plain = acceptance(Affinity.intersection(vocabulary))
    with pytest.warns(
        UserWarning, match=r"by 0\.240, but with Affinity\.intersection by 0\.8"
    ) as got:
        affinity = Affinity.first_order(vocabulary, p.mean(0), tau=0.001)
    assert got[0].filename == __file__
    assert acceptance(affinity) == pytest.approx(0.14, abs=0.005)
    assert plain == pytest.approx(0.62, abs=0.005)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        keeping = Affinity.first_order(vocabulary, p.mean(0), tau=0.001, keep=0.9)
    assert acceptance(keeping) == pytest.approx(0.63, abs=0.005)
