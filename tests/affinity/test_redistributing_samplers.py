"""Covariance, cold mass and `keep` against dense algebra (DESIGN section 2, "Samplers")."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rdk_cuda
from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.affinity.fixed_point import ONE
from rdk_cuda.reference import dense
from rdk_cuda.vocabulary import Vocabulary

UNIT = 1 / ONE
# Of a row: one unit for S, and one for the priors and their shares together.
CLOSE = 2 * UNIT
# With two priors, one unit more.
FIRST_ORDER_CLOSE = 3 * UNIT

NAN, INF = math.nan, math.inf


def generator(seed):
    return torch.Generator().manual_seed(seed)


def random_omega(size, seed, *, sparse=False):
    """Of both signs, or almost empty and non-negative. Not symmetric: rows are what counts."""
    omega = torch.randn(size, size, generator=generator(seed), dtype=torch.float64)
    if sparse:
        listed = torch.rand(size, size, generator=generator(seed + 1)) < 2 / size
        omega = omega.abs() * listed
    return omega


def mean_probs(size, seed=0):
    return torch.rand(size, generator=generator(seed), dtype=torch.float64).pow(3) + 1e-9


def same(ours, theirs):
    pairs = zip(ours.by_draft + ours.by_target, theirs.by_draft + theirs.by_target, strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def assert_rows_sum_exactly(affinity):
    """As whole numbers of 2^-32, where the row is not masked."""
    ends = torch.nn.functional.pad(affinity.row_cdf, (1, 0))[affinity.row_offsets[1:].long()]
    ends = torch.where(affinity.row_offsets.diff() > 0, ends, 0)
    if affinity.rank:
        ends = affinity.spread_cdf[:, -1]
    assert torch.equal(ends, torch.where(affinity.bias == -INF, 0, ONE))
    assert affinity.prior_cdf[:, -1].tolist() == [ONE] * affinity.rank


def assert_is(affinity, matrix, close=CLOSE):
    """`A` is `matrix`, and the operator redistributes by it."""
    assert_rows_sum_exactly(affinity)
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


TAUS = st.sampled_from([1e-300, 1e-6, 1e-4, 0.03, 1.0, 50.0, 1e300])
KEEPS = st.sampled_from([0.0, 1e-12, 0.3, 0.999, 1.0])
SEEDS = st.integers(0, 10_000)
EVERY = settings(max_examples=50, deadline=None)


# -------------------------------------------------------------------------------- covariance


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS, st.booleans())
@example(Vocabulary([-1], 1), 0, 1.0, 0.5, False)
def test_covariance_is_the_exact_softmax_of_a_dense_omega(vocabulary, seed, tau, keep, sparse):
    omega = random_omega(vocabulary.target_size, seed, sparse=sparse)
    rows = dense.drafter_rows(dense.exact_rdk(omega, tau), vocabulary.draft_ids)
    affinity = Affinity.covariance(vocabulary, omega, tau, keep=keep)
    assert_is(affinity, dense.with_kept_mass(rows, vocabulary.draft_ids, keep))
    assert not affinity.bias.any()


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS)
def test_covariance_of_a_sparse_omega_is_the_softmax_of_its_positive_part(
    vocabulary, seed, tau, keep
):
    omega = random_omega(vocabulary.target_size, seed)
    omega *= torch.rand(omega.shape, generator=generator(seed)) < 0.3
    positive = omega.clamp(min=0)
    rows = dense.drafter_rows(dense.exact_rdk(positive, tau), vocabulary.draft_ids)
    affinity = Affinity.covariance(vocabulary, omega.to_sparse(), tau, keep=keep)
    assert_is(affinity, dense.with_kept_mass(rows, vocabulary.draft_ids, keep))
    assert affinity.nnz <= int((positive > 0).sum()) + vocabulary.draft_size


def test_negative_entries_count_in_a_dense_omega_only():
    """The control of the two tests above: here the exact rows and the positive part differ."""
    vocabulary, omega = Vocabulary.identity(2), torch.tensor([[0.0, -1.0], [-1.0, 0.0]])
    exact = Affinity.covariance(vocabulary, omega, 1.0).dense()
    positive = Affinity.covariance(vocabulary, omega.to_sparse(), 1.0).dense()
    assert float(exact[0, 0]) == pytest.approx(1 / (1 + math.exp(-1)))
    assert positive.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dense_and_sparse_omega_of_one_least_entry_zero_give_the_same_affinity(dtype):
    omega = random_omega(30, 3, sparse=True).to(dtype)
    vocabulary = Vocabulary([7, -1, 29, 0, 12], 30)
    ours = Affinity.covariance(vocabulary, omega, 0.2, keep=0.1)
    assert 0 < ours.nnz < 5 * 30 / 2
    with torch.sparse.check_sparse_tensor_invariants(True):
        sparse = [omega.to_sparse()]
        if dtype != torch.bfloat16:
            sparse += [omega.to_sparse_csr(), omega.to_sparse_csc()]
    for given_omega in sparse:
        assert same(Affinity.covariance(vocabulary, given_omega, 0.2, keep=0.1), ours)


def test_covariance_adds_up_repeated_coordinates_and_takes_zeros():
    with torch.sparse.check_sparse_tensor_invariants(True):
        repeated = torch.sparse_coo_tensor([[1, 1, 0], [0, 0, 0]], [0.25, 0.5, 0.0], (2, 2))
    omega = torch.tensor([[0.0, 0.0], [0.75, 0.0]])
    vocabulary = Vocabulary([1, 0], 2)
    ours = Affinity.covariance(vocabulary, repeated, 1.0)
    assert same(ours, Affinity.covariance(vocabulary, omega, 1.0))


@pytest.mark.parametrize("layout", ["dense", "sparse"])
@pytest.mark.parametrize("tau", [1e-4, 1e-30, 1e-300, 5e-324])
def test_a_small_tau_does_not_overflow_but_leads_to_the_most_similar_token(layout, tau):
    omega = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.0, 0.0], [0.7, 0.0, 0.7]])
    omega = omega.to_sparse() if layout == "sparse" else omega
    rows = Affinity.covariance(Vocabulary.identity(3), omega, tau).dense()
    assert rows[0].tolist() == [0, 1, 0]
    assert float((rows[1] - 1 / 3).abs().max()) <= UNIT
    assert rows[2].tolist() == [0.5, 0, 0.5]


def test_a_drafter_of_foreign_tokens_only_spreads_evenly():
    for omega in (torch.eye(4), torch.eye(4).to_sparse()):
        affinity = Affinity.covariance(Vocabulary([-1, -1], 4), omega, 0.1, keep=0.5)
        assert affinity.dense().tolist() == [[0.25] * 4] * 2


def test_covariance_approaches_first_order_where_the_covariances_are_small():
    mean, tau = mean_probs(20), 100.0
    mean /= mean.sum()
    vocabulary = Vocabulary([3, -1, 11], 20)
    exact = Affinity.covariance(vocabulary, torch.outer(mean, mean), tau)
    first = Affinity.first_order(vocabulary, mean, tau)
    assert float((exact.dense() - first.dense()).abs().max()) < 1e-8  # x^2 / 2, x < 1e-4


@pytest.mark.slow
def test_a_sparse_omega_of_a_whole_language_model_builds_in_seconds():
    """1 M entries over 128,256 tokens, where a dense matrix would need 131 GB."""
    size, nnz = 128_256, 1_000_000
    where = torch.randint(0, size, (2, nnz), generator=generator(0))
    values = torch.rand(nnz, generator=generator(1))
    with torch.sparse.check_sparse_tensor_invariants(True):
        omega = torch.sparse_coo_tensor(where, values, (size, size)).coalesce()
    kept = torch.randperm(size, generator=generator(2))[:32_768]
    affinity = Affinity.covariance(Vocabulary(kept, size), omega, 0.1, keep=0.2)
    assert_rows_sum_exactly(affinity)
    for i in (0, 17, 32_767):
        row = omega[int(kept[i])].to_dense().double()
        expected = 0.8 * torch.softmax(row / 0.1, 0)
        expected[kept[i]] += 0.2
        begin, end = affinity.row_offsets[i : i + 2].tolist()
        actual = affinity.spread[i].double() @ affinity.prior.double()
        masses = affinity.row_cdf[begin:end].diff(prepend=torch.zeros(1, dtype=torch.int64))
        actual[affinity.row_targets[begin:end].long()] += masses.double() / ONE
        assert float((actual - expected).abs().max()) <= 2 * CLOSE  # U and P rounded to float32


# ---------------------------------------------------------------------------------- cold mass


@EVERY
@given(vocabularies().filter(lambda vocabulary: vocabulary.pruned.numel() > 0), SEEDS)
def test_cold_mass_is_one_more_row_for_all_that_is_pruned(vocabulary, seed):
    prior = mean_probs(vocabulary.target_size, seed)
    affinity = Affinity.cold_mass(vocabulary, prior * 5)  # normalised inside
    assert_is(affinity, dense.cold_mass(vocabulary.draft_ids, prior))
    assert affinity.draft_size == vocabulary.draft_size + 1
    assert affinity.nnz == vocabulary.kept.numel()
    masked = torch.cat([vocabulary.draft_ids < 0, torch.tensor([False])])
    assert torch.equal(affinity.bias, torch.where(masked, -INF, 0.0))
    assert int(affinity.row_top[-1]) == int(affinity.dense()[-1].argmax())


def test_cold_mass_maps_as_one_virtual_token_does():
    vocabulary, prior = Vocabulary([4, -1, 0], 9), mean_probs(9)
    clusters = torch.full((9,), -1).index_fill(0, vocabulary.pruned, 0)
    one = Affinity.virtual_tokens(vocabulary, clusters, prior)
    cold = Affinity.cold_mass(vocabulary, prior)
    assert float((cold.dense() - one.dense()).abs().max()) <= UNIT
    assert cold.bias[-1] == 0
    assert float(one.bias[-1]) > 0  # the entropy of what it stands for


def test_a_pruned_token_without_probability_is_not_drafted():
    affinity = Affinity.cold_mass(Vocabulary([0], 3), torch.tensor([0.5, 0.0, 0.5]))
    assert affinity.dense().tolist() == [[1, 0, 0], [0, 0, 1]]


# --------------------------------------------------------------------------------------- keep


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS)
def test_first_order_keeps_a_share_and_redistributes_the_rest(vocabulary, seed, tau, keep):
    mean = mean_probs(vocabulary.target_size, seed)
    rows = dense.drafter_rows(dense.first_order_rdk(mean, tau), vocabulary.draft_ids)
    affinity = Affinity.first_order(vocabulary, mean, tau, keep=keep)
    expected = dense.with_kept_mass(rows, vocabulary.draft_ids, keep)
    assert_is(affinity, expected, FIRST_ORDER_CLOSE)


VOCABULARY = Vocabulary([2, -1, 0, 3], 5)
CONSTRUCTORS = {
    "first_order": lambda **keep: Affinity.first_order(VOCABULARY, mean_probs(5), 0.01, **keep),
    "covariance": lambda **keep: Affinity.covariance(VOCABULARY, random_omega(5, 0), 0.5, **keep),
    "sparse covariance": lambda **keep: Affinity.covariance(
        VOCABULARY, random_omega(5, 0, sparse=True).to_sparse(), 0.5, **keep
    ),
}
redistributing = pytest.mark.parametrize("build", CONSTRUCTORS.values(), ids=CONSTRUCTORS)


@redistributing
def test_keeping_nothing_is_redistribution_to_the_bit(build):
    for nothing in (0, 0.0, torch.zeros(4), [0, 1, 0, 0]):  # token 1 has nothing to keep
        assert same(build(keep=nothing), build())


@redistributing
def test_keeping_all_is_the_intersection_with_foreign_tokens_spread_evenly(build):
    matrix = build(keep=1.0).dense()
    kept = [0, 2, 3]
    assert torch.equal(matrix[kept], Affinity.intersection(VOCABULARY).dense()[kept])
    assert matrix[1].tolist() == pytest.approx([0.2] * 5, abs=UNIT)


@redistributing
def test_each_token_may_keep_a_share_of_its_own(build):
    shares = torch.tensor([0.25, 0.9, 0.0, 1.0])
    expected = dense.with_kept_mass(build().dense(), VOCABULARY.draft_ids, shares)
    assert float((build(keep=shares).dense() - expected).abs().max()) <= 2 * CLOSE
    # A row that keeps nothing is what it was, unit for unit.
    assert torch.equal(build(keep=shares).dense()[1:3], build().dense()[1:3])


@redistributing
def test_whoever_keeps_enough_drafts_greedily_what_the_drafter_says(build):
    assert build(keep=0.75).row_top[[0, 2, 3]].tolist() == [2, 0, 3]


@redistributing
@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (1.5, "keep is 1.5; needs a share from 0 to 1"),
        (-1e-9, "keep is -1e-09"),
        (NAN, "keep is nan"),
        (INF, "keep is inf"),
        (torch.tensor([0.5, 0.5, 2.0, NAN]), r"keep\[2\] is 2.0"),
        ([0.5, NAN, 0.5, 0.5], r"keep\[1\] is nan"),
        (torch.zeros(5), r"keep has shape \[5\]; needs a number or \[V_d\] = \[4\]"),
        (torch.zeros(1), r"keep has shape \[1\]"),
    ],
)
def test_a_keep_that_is_no_share_is_refused_by_name(build, keep, message):
    with pytest.raises(AffinityError, match=r"Affinity.(first_order|covariance): " + message):
        build(keep=keep)


# ----------------------------------------------------------------------------------- refusals


def _with(entry):
    omega = torch.eye(5)
    omega[3, 1] = entry
    return omega


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(4), 1.0), r"omega has shape \[4, 4\]"),
        (lambda: Affinity.covariance(VOCABULARY, torch.ones(5), 1.0), r"omega has shape \[5\]"),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(4).to_sparse(), 1.0), r"\[5, 5\] real"),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(5).to(torch.complex64), 1.0), "complex"),
        (
            lambda: Affinity.covariance(VOCABULARY, torch.eye(5).to_sparse(1), 1.0),
            "both dimensions",
        ),
        (lambda: Affinity.covariance(VOCABULARY, _with(NAN), 1.0), r"omega\[3, 1\] is nan"),
        (lambda: Affinity.covariance(VOCABULARY, _with(-INF), 1.0), r"omega\[3, 1\] is -inf"),
        (
            lambda: Affinity.covariance(VOCABULARY, _with(INF).to_sparse(), 1.0),
            r"omega\[3, 1\] is inf",
        ),
        (
            lambda: Affinity.covariance(VOCABULARY, _with(NAN).to_sparse(), 1.0),
            r"omega\[3, 1\] is nan",
        ),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(5), 0.0), "tau is 0.0"),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(5), -1.0), "tau is -1.0"),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(5), NAN), "tau is nan"),
        (lambda: Affinity.covariance(VOCABULARY, torch.eye(5), INF), "tau is inf"),
        (
            lambda: Affinity.covariance(
                Vocabulary.identity(2049), torch.zeros(1, 1).expand(2049, 2049), 1.0
            ),
            r"omega is dense and V_d x V_t, 2049 x 2049, is more than 2\^22 entries",
        ),
        (lambda: Affinity.cold_mass(VOCABULARY, torch.ones(4)), r"mean_probs has shape \[4\]"),
        (lambda: Affinity.cold_mass(VOCABULARY, torch.full((5,), NAN)), r"mean_probs\[0\] is nan"),
        (lambda: Affinity.cold_mass(VOCABULARY, -torch.ones(5)), r"mean_probs\[0\] is -1.0"),
        (
            lambda: Affinity.cold_mass(VOCABULARY, torch.tensor([1.0, 0, 1, 1, 0])),
            "mean_probs has no mass on the 2 pruned tokens; needs some, or use",
        ),
        (
            lambda: Affinity.cold_mass(Vocabulary.identity(3), torch.ones(3)),
            "no mass on the 0 pruned tokens",
        ),
    ],
)
def test_what_makes_no_sampler_is_refused_by_name(build, message):
    with pytest.raises(AffinityError, match=message):
        build()


def test_the_largest_dense_omega_that_is_taken_is_as_the_error_says():
    vocabulary = Vocabulary(list(range(1024)), 4096)  # 2^22 entries
    affinity = Affinity.covariance(vocabulary, torch.zeros(1, 1).expand(4096, 4096), 1.0)
    assert affinity.nnz == 0
    assert rdk_cuda.redistribute(torch.zeros(1, 1024), affinity).sum().item() == pytest.approx(1)
