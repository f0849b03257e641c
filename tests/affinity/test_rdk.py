"""RDK from similarities and to first order, and `keep`, against dense algebra."""

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import rdk_cuda
from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.affinity.fixed_point import ONE
from rdk_cuda.reference import dense
from rdk_cuda.vocabulary import Vocabulary

from .test_samplers import (
    EVERY,
    SEEDS,
    UNIT,
    assert_is,
    assert_rows_sum_exactly,
    generator,
    mean_probs,
    same,
    vocabularies,
)

NAN, INF = math.nan, math.inf
TAUS = st.sampled_from([1e-300, 1e-6, 1e-4, 0.03, 1.0, 50.0, 1e300])
KEEPS = st.sampled_from([0.0, 1e-12, 0.3, 0.999, 1.0])
VOCABULARY = Vocabulary([2, -1, 0, 3], 5)


def random_omega(size, seed, *, sparse=False):
    """Of both signs, or almost empty and non-negative. Not symmetric: rows are what counts."""
    omega = torch.randn(size, size, generator=generator(seed), dtype=torch.float64)
    if sparse:
        listed = torch.rand(size, size, generator=generator(seed + 1)) < 2 / size
        omega = omega.abs() * listed
    return omega


def rows_of(matrix, vocabulary, keep):
    rows = dense.drafter_rows(matrix, vocabulary.draft_ids)
    return dense.with_kept_mass(rows, vocabulary.draft_ids, keep)


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS)
def test_first_order_keeps_a_share_and_redistributes_the_rest(vocabulary, seed, tau, keep):
    mean = mean_probs(vocabulary.target_size, seed)
    affinity = Affinity.first_order(vocabulary, mean * 7, tau, keep=keep)  # normalised inside
    assert_is(affinity, rows_of(dense.first_order_rdk(mean, tau), vocabulary, keep))
    assert not affinity.bias.any()


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS, st.booleans())
@example(Vocabulary([-1], 1), 0, 1.0, 0.5, False)
def test_covariance_is_the_exact_softmax_of_a_dense_omega(vocabulary, seed, tau, keep, sparse):
    omega = random_omega(vocabulary.target_size, seed, sparse=sparse)
    affinity = Affinity.covariance(vocabulary, omega, tau, keep=keep)
    assert_is(affinity, rows_of(dense.exact_rdk(omega, tau), vocabulary, keep))
    assert not affinity.bias.any()


@EVERY
@given(vocabularies(), SEEDS, TAUS, KEEPS)
def test_covariance_of_a_sparse_omega_is_the_softmax_of_its_positive_part(
    vocabulary, seed, tau, keep
):
    omega = random_omega(vocabulary.target_size, seed)
    omega *= torch.rand(omega.shape, generator=generator(seed)) < 0.3
    positive = omega.clamp(min=0)
    affinity = Affinity.covariance(vocabulary, omega.to_sparse(), tau, keep=keep)
    assert_is(affinity, rows_of(dense.exact_rdk(positive, tau), vocabulary, keep))
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
        listed = omega.to_sparse()
        # Repeated coordinates add up, and a zero that is listed is one like any other.
        where = torch.cat([listed.indices(), listed.indices(), torch.tensor([[1], [1]])], 1)
        halves = torch.cat([listed.values() / 2, listed.values() / 2, listed.values()[:1] * 0])
        sparse = [listed, torch.sparse_coo_tensor(where, halves, (30, 30))]
        if dtype != torch.bfloat16:
            sparse += [omega.to_sparse_csr(), omega.to_sparse_csc()]
    assert all(same(Affinity.covariance(vocabulary, s, 0.2, keep=0.1), ours) for s in sparse)


@pytest.mark.night
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
        expected = 0.8 * torch.softmax(omega[int(kept[i])].to_dense().double() / 0.1, 0)
        expected[kept[i]] += 0.2
        begin, end = affinity.row_offsets[i : i + 2].tolist()
        actual = affinity.spread[i].double() @ affinity.prior.double()
        units = affinity.row_cdf[begin:end].diff(prepend=torch.zeros(1, dtype=torch.int64))
        actual[affinity.row_targets[begin:end].long()] += units.double() / ONE
        assert float((actual - expected).abs().max()) <= 4 * UNIT  # U and P rounded to float32


# --------------------------------------------------------------------------------------- keep

SPARSE = random_omega(5, 0, sparse=True).to_sparse()
CONSTRUCTORS = {
    "first_order": lambda **keep: Affinity.first_order(VOCABULARY, mean_probs(5), 0.01, **keep),
    "covariance": lambda **keep: Affinity.covariance(VOCABULARY, random_omega(5, 0), 0.5, **keep),
    "sparse covariance": lambda **keep: Affinity.covariance(VOCABULARY, SPARSE, 0.5, **keep),
}
redistributing = pytest.mark.parametrize("build", CONSTRUCTORS.values(), ids=CONSTRUCTORS)


@redistributing
def test_keeping_nothing_is_redistribution_and_keeping_all_the_intersection_to_the_bit(build):
    for nothing in (0, 0.0, torch.zeros(4), [0, 1, 0, 0]):  # token 1 has nothing to keep
        assert same(build(keep=nothing), build())
    kept = [0, 2, 3]
    matrix = build(keep=1.0).dense()
    assert torch.equal(matrix[kept], Affinity.intersection(VOCABULARY).dense()[kept])
    assert matrix[1].tolist() == pytest.approx([0.2] * 5, abs=UNIT)


@redistributing
def test_each_token_may_keep_a_share_of_its_own(build):
    shares = torch.tensor([0.25, 0.9, 0.0, 1.0])
    expected = dense.with_kept_mass(build().dense(), VOCABULARY.draft_ids, shares)
    assert float((build(keep=shares).dense() - expected).abs().max()) <= 4 * UNIT
    # A row that keeps nothing is what it was, unit for unit.
    assert torch.equal(build(keep=shares).dense()[1:3], build().dense()[1:3])


# ----------------------------------------------------------------------------------- refusals

KEEPS_REFUSED = {
    "keep is 1.5; needs a share from 0 to 1": 1.5,
    "keep is -1e-09": -1e-9,
    "keep is nan": NAN,
    "keep is inf": INF,
    r"keep\[2\] is 2.0": torch.tensor([0.5, 0.5, 2.0, NAN]),
    r"keep\[1\] is nan": [0.5, NAN, 0.5, 0.5],
    r"keep has shape \[5\]; needs \[4\]": torch.zeros(5),
    r"keep has shape \[1\]": torch.zeros(1),
}


@redistributing
@pytest.mark.parametrize("message", KEEPS_REFUSED)
def test_a_keep_that_is_no_share_is_refused_by_name(build, message):
    with pytest.raises(AffinityError, match=r"Affinity.(first_order|covariance): " + message):
        build(keep=KEEPS_REFUSED[message])


def eye_with(entry):
    omega = torch.eye(5)
    omega[3, 1] = entry
    return omega


OMEGAS = [
    (r"has shape \[4, 4\]", torch.eye(4)),
    (r"has shape \[5\]", torch.ones(5)),
    (r".*\[5, 5\] real", torch.eye(4).to_sparse()),
    (".*complex", torch.eye(5).to(torch.complex64)),
    (".*both dimensions", torch.eye(5).to_sparse(1)),
    *((rf"\[3, 1\] is {bad}", eye_with(bad)) for bad in (NAN, INF, -INF)),
    *((rf"\[3, 1\] is {bad}", eye_with(bad).to_sparse()) for bad in (NAN, INF, -INF)),
]


@pytest.mark.parametrize(("message", "omega"), OMEGAS)
def test_an_omega_that_is_none_is_refused_by_name(message, omega):
    with pytest.raises(AffinityError, match=f"covariance: omega ?{message}"):
        Affinity.covariance(VOCABULARY, omega, 1.0)


def test_mean_probs_may_be_any_numbers():
    mean = mean_probs(5)
    given = (Affinity.first_order(VOCABULARY, form, 0.01) for form in (mean.tolist(), mean.numpy()))
    expected = Affinity.first_order(VOCABULARY, mean, 0.01)
    assert all(torch.equal(one.dense(), expected.dense()) for one in given)


@pytest.mark.parametrize("tau", [0.0, -1.0, NAN, INF])
def test_a_tau_that_is_not_positive_is_refused_by_name(tau):
    with pytest.raises(AffinityError, match=f"covariance: tau is {tau}"):
        Affinity.covariance(VOCABULARY, torch.eye(5), tau)
    with pytest.raises(AffinityError, match=f"first_order: tau is {tau}"):
        Affinity.first_order(VOCABULARY, torch.ones(5), tau)


@pytest.mark.parametrize(
    ("mean", "message"),
    [
        (torch.ones(4), r"has shape \[4\]"),
        (torch.zeros(5), " ?is all 0"),
        (-torch.ones(5), r"\[0\] is -1"),
    ],
)
def test_mean_probs_that_are_none_are_refused_by_name(mean, message):
    with pytest.raises(AffinityError, match=f"first_order: mean_probs ?{message}"):
        Affinity.first_order(VOCABULARY, mean, 1.0)


def test_the_largest_dense_omega_that_is_taken_is_as_the_error_says():
    nothing = torch.zeros(1, 1)
    affinity = Affinity.covariance(  # 2^22 entries
        Vocabulary(list(range(1024)), 4096), nothing.expand(4096, 4096), 1.0
    )
    assert affinity.nnz == 0
    assert rdk_cuda.redistribute(torch.zeros(1, 1024), affinity).sum().item() == pytest.approx(1)
    too_large = r"omega is dense and V_d x V_t, 2049 x 2049, is more than 2\^22 entries"
    with pytest.raises(AffinityError, match=too_large):
        Affinity.covariance(Vocabulary.identity(2049), nothing.expand(2049, 2049), 1.0)
