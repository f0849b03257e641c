"""Every constructor is the sampler that DESIGN section 2 says it is."""

import math

import pytest
import torch

from rdk_cuda.affinity import Affinity, AffinityError
from rdk_cuda.affinity.fixed_point import ONE
from rdk_cuda.vocabulary import Vocabulary

UNIT = 1 / ONE


def _mean_probs(size, seed=0):
    return torch.rand(size, generator=torch.Generator().manual_seed(seed)).double().pow(3)


def _assert_is(affinity, matrix):
    """`A` is `matrix` but for rounding: a unit each for S, for every U, and for P."""
    assert affinity.dense().dtype == torch.float64
    off = (affinity.dense() - torch.as_tensor(matrix).double()).abs().max()
    assert float(off) <= (2 + affinity.rank) * UNIT


def _clusters(vocabulary, count, seed=0):
    clusters = torch.full((vocabulary.target_size,), -1)
    labels = torch.arange(vocabulary.pruned.numel()) % count
    shuffle = torch.randperm(labels.numel(), generator=torch.Generator().manual_seed(seed))
    clusters[vocabulary.pruned] = labels[shuffle]
    return clusters


def test_intersection_maps_shared_tokens_to_themselves_and_masks_the_others():
    affinity = Affinity.intersection(Vocabulary([3, -1, 0], target_size=5))
    expected = torch.zeros(3, 5)
    expected[0, 3] = expected[2, 0] = 1
    assert torch.equal(affinity.dense(), expected.double())
    assert affinity.bias.tolist() == [0, -math.inf, 0]
    assert affinity.row_top.tolist() == [3, -1, 0]
    assert affinity.row_cdf.tolist() == [ONE, ONE]
    assert affinity.rank == 0


def test_intersection_of_equal_vocabularies_is_the_identity():
    affinity = Affinity.intersection(Vocabulary.identity(111))
    assert torch.equal(affinity.dense(), torch.eye(111).double())
    assert torch.equal(affinity.bias, torch.zeros(111))


@pytest.mark.parametrize("tau", [1e-300, 1e-6, 0.01, 1.0, 1e9])
def test_first_order_is_proportional_to_one_plus_mu_mu_over_tau(tau):
    vocabulary = Vocabulary([4, -1, 0, 17, 9], target_size=20)
    mean = _mean_probs(20)
    affinity = Affinity.first_order(vocabulary, mean * 7, tau)  # normalised inside

    mean = mean / mean.sum()
    mu = torch.where(vocabulary.draft_ids >= 0, mean[vocabulary.draft_ids], 0.0)
    kernel = tau + mu[:, None] * mean[None, :]
    _assert_is(affinity, kernel / kernel.sum(1, keepdim=True))
    assert torch.equal(affinity.bias, torch.zeros(5))
    assert affinity.nnz == 0
    assert affinity.rank == 2


def test_first_order_spreads_a_drafter_only_token_evenly():
    affinity = Affinity.first_order(Vocabulary([0, -1], target_size=7), _mean_probs(7), 1e-9)
    assert affinity.spread[1].tolist() == [1, 0]
    assert float((affinity.dense()[1] - 1 / 7).abs().max()) <= UNIT
    assert float((affinity.dense()[0] - 1 / 7).abs().max()) > 0.1


def test_first_order_approaches_the_exact_kernel_of_small_covariances():
    vocabulary, mean, tau = Vocabulary.identity(30), _mean_probs(30), 10.0
    mean = mean / mean.sum()
    exact = (torch.outer(mean, mean) / tau).softmax(1)
    affinity = Affinity.first_order(vocabulary, mean, tau)
    assert float((affinity.dense() - exact).abs().max()) < 1e-6  # exp(x) - 1 - x, x < 1e-2


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.05])
def test_virtual_tokens_share_out_their_cluster_by_the_sharpened_prior(temperature):
    vocabulary = Vocabulary([11, 2, 5, 7], target_size=25)
    clusters, prior = _clusters(vocabulary, 3), _mean_probs(25)
    offset = torch.tensor([0.5, -0.25, -math.inf])
    affinity = Affinity.virtual_tokens(
        vocabulary, clusters, prior, temperature=temperature, offset=offset
    )
    expected = torch.zeros(7, 25).double()
    expected[torch.arange(4), vocabulary.draft_ids] = 1
    bias = torch.zeros(7).double()
    for c in range(2):
        mass = torch.where(clusters == c, prior, 0.0) ** (1 / temperature)
        expected[4 + c] = w = mass / mass.sum()
        bias[4 + c] = torch.special.entr(w).sum() + offset[c]
    bias[6] = -math.inf  # switched off, so its row is empty
    _assert_is(affinity, expected)
    torch.testing.assert_close(affinity.bias, bias.float(), rtol=0, atol=1e-6)
    assert affinity.row_top[6] == -1
    assert affinity.rank == 0


def test_one_virtual_token_is_the_cold_mass_sampler():
    vocabulary, prior = Vocabulary([0, 3], target_size=6), _mean_probs(6)
    affinity = Affinity.virtual_tokens(vocabulary, _clusters(vocabulary, 1), prior)
    cold = torch.where(torch.tensor([0, 1, 1, 0, 1, 1]).bool(), prior, 0.0)
    _assert_is(affinity, torch.stack([*torch.eye(6)[[0, 3]].double(), cold / cold.sum()]))


def test_low_temperatures_do_not_underflow():
    vocabulary = Vocabulary([0], target_size=4)
    clusters = torch.tensor([-1, 0, 0, 0])
    prior = torch.tensor([0.9, 1e-30, 3e-30, 2e-30])
    affinity = Affinity.virtual_tokens(vocabulary, clusters, prior, temperature=1e-3)
    assert affinity.dense()[1].tolist() == [0, 0, 1, 0]


def test_clusters_without_members_or_mass_are_masked():
    vocabulary = Vocabulary([0], target_size=5)
    clusters = torch.tensor([-1, 0, 2, 0, -1])  # no cluster 1; token 4 in none
    prior = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.1])  # cluster 2 has no mass
    affinity = Affinity.virtual_tokens(vocabulary, clusters, prior)
    assert affinity.bias.tolist() == [0, 0, -math.inf, -math.inf]
    assert affinity.row_top.tolist() == [0, 1, -1, -1]
    assert affinity.col_offsets.diff().tolist() == [1, 1, 0, 0, 0]


def test_without_clusters_virtual_tokens_are_the_intersection():
    vocabulary = Vocabulary([3, -1], target_size=4)
    affinity = Affinity.virtual_tokens(vocabulary, torch.full((4,), -1), torch.ones(4))
    for ours, theirs in zip(
        affinity.by_draft, Affinity.intersection(vocabulary).by_draft, strict=True
    ):
        assert torch.equal(ours, theirs)


def _random_rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(6, 9, generator=generator).double()
    rows *= torch.rand(6, 9, generator=generator) < 0.4
    spread = torch.rand(6, 2, generator=generator).double()
    prior = torch.rand(2, 9, generator=generator).double()
    rows[2], spread[2] = 0, 0
    return rows, spread, prior


def test_from_rows_normalises_and_keeps_the_mass_in_the_bias():
    rows, spread, prior = _random_rows()
    bias = torch.tensor([0.0, 1.0, 2.0, -math.inf, -1.0, 0.0])
    affinity = Affinity.from_rows(rows, spread=spread, prior=prior, bias=bias)
    mass = rows.sum(1) + spread.sum(1)
    matrix = (rows + spread @ (prior / prior.sum(1, keepdim=True))) / mass[:, None]
    matrix[[2, 3]] = 0  # without mass, and masked by its bias
    _assert_is(affinity, matrix)
    torch.testing.assert_close(affinity.bias, (bias + mass.log()).float())
    assert affinity.bias[2] == affinity.bias[3] == -math.inf
    assert affinity.row_top[2] == affinity.row_top[3] == -1


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_from_rows_takes_mappings_dense_and_sparse_tensors_alike():
    rows, _, _ = _random_rows()
    mappings = [
        {int(x): float(row[x]) for x in row.nonzero().flatten().flip(0)}
        | {0: float(row[0])}  # an explicit zero is no entry
        for row in rows
    ]
    dense = Affinity.from_rows(rows)
    with torch.sparse.check_sparse_tensor_invariants(True):
        sparse = [rows.to_sparse(), rows.to_sparse_csr(), rows.to_sparse_csc()]
    for given in ([Affinity.from_rows(mappings, target_size=9)], map(Affinity.from_rows, sparse)):
        for affinity in given:
            for ours, theirs in zip(affinity.by_draft, dense.by_draft, strict=True):
                assert torch.equal(ours, theirs)


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


NAN, INF = math.nan, math.inf
VOCABULARY = Vocabulary([0], target_size=3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Affinity.from_rows([{3: 1.0}], target_size=3), r"rows\[0\] holds token 3"),
        (lambda: Affinity.from_rows([{}, {-1: 1.0}], target_size=3), r"rows\[1\] holds token -1"),
        (lambda: Affinity.from_rows([{1: -1.0}], target_size=3), r"rows\[0\]\[1\] is -1.0"),
        (lambda: Affinity.from_rows([{1: NAN}], target_size=3), r"rows\[0\]\[1\] is nan"),
        (lambda: Affinity.from_rows([{1: INF}], target_size=3), r"rows\[0\]\[1\] is inf"),
        (lambda: Affinity.from_rows([{1.5: 1.0}], target_size=3), r"rows\[0\] is \{1.5: 1.0\}"),
        (lambda: Affinity.from_rows([[1.0]], target_size=3), "needs a mapping"),
        (lambda: Affinity.from_rows([], target_size=3), "V_d >= 1"),
        (lambda: Affinity.from_rows([{0: 1.0}]), "got no target_size; needs one V_t"),
        (lambda: Affinity.from_rows(torch.ones(2, 3), target_size=4), "needs one V_t"),
        (lambda: Affinity.from_rows(torch.ones(3)), r"rows has shape \[3\]"),
        (lambda: Affinity.from_rows(-torch.ones(1, 2)), r"rows, entry \[0\] is -1.0"),
        (lambda: Affinity.from_rows(torch.full((1, 2), NAN)), r"rows, entry \[0\] is nan"),
        (lambda: Affinity.from_rows(torch.ones(1, 2), spread=torch.ones(1, 1)), "one of spread"),
        (
            lambda: Affinity.from_rows(
                torch.ones(1, 2), spread=torch.ones(1, 2), prior=torch.ones(1, 2)
            ),
            r"spread has shape \[1, 2\].*needs \[1, 1\]",
        ),
        (
            lambda: Affinity.from_rows(
                torch.ones(1, 2), spread=torch.ones(1, 1), prior=torch.zeros(1, 2)
            ),
            "prior 0 has no mass",
        ),
        (
            lambda: Affinity.from_rows(
                torch.ones(1, 2), spread=torch.ones(1, 5), prior=torch.ones(5, 2)
            ),
            "R <= 4",
        ),
        (lambda: Affinity.from_rows(torch.ones(1, 2), bias=torch.tensor([NAN])), r"bias\[0\] is"),
        (lambda: Affinity.from_rows(torch.ones(1, 2), bias=torch.tensor([INF])), r"bias\[0\] is"),
        (lambda: Affinity.from_rows(torch.ones(2, 2), bias=torch.ones(1)), r"bias has shape \[1\]"),
        (lambda: Affinity.first_order(VOCABULARY, torch.ones(3), 0.0), "tau is 0.0"),
        (lambda: Affinity.first_order(VOCABULARY, torch.ones(3), NAN), "tau is nan"),
        (lambda: Affinity.first_order(VOCABULARY, torch.ones(3), INF), "tau is inf"),
        (lambda: Affinity.first_order(VOCABULARY, torch.ones(4), 1.0), r"mean_probs has shape"),
        (lambda: Affinity.first_order(VOCABULARY, torch.zeros(3), 1.0), "mean_probs is all 0"),
        (lambda: Affinity.first_order(VOCABULARY, -torch.ones(3), 1.0), r"mean_probs\[0\] is -1"),
    ],
)
def test_what_makes_no_affinity_is_refused_by_name(build, message):
    with pytest.raises(AffinityError, match=message):
        build()


@pytest.mark.parametrize(
    ("clusters", "prior", "options", "message"),
    [
        ([0, -1, -1], [1, 1, 1], {}, r"clusters\[0\] is 0; needs -1, since the token is kept"),
        ([-1, -2, 0], [1, 1, 1], {}, r"clusters\[1\] is -2"),
        ([-1, 0, 3], [1, 1, 1], {}, r"clusters\[2\] is 3; needs -1 to 2"),
        ([-1, 0], [1, 1, 1], {}, r"clusters has shape \[2\]"),
        ([-1.0, 0.0, 0.0], [1, 1, 1], {}, "dtype torch.float32"),
        ([-1, 0, 0], [1, 1], {}, r"mean_probs has shape \[2\]"),
        ([-1, 0, 0], [1, -1, 1], {}, r"mean_probs\[1\] is -1"),
        ([-1, 0, 0], [1, 1, 1], {"temperature": 0.0}, "temperature is 0.0"),
        ([-1, 0, 0], [1, 1, 1], {"temperature": NAN}, "temperature is nan"),
        ([-1, 0, 0], [1, 1, 1], {"offset": [0.0, 0.0]}, r"offset has shape \[2\]"),
        ([-1, 0, 0], [1, 1, 1], {"offset": NAN}, r"bias\[1\] is nan"),
        ([-1, 0, 0], [1, 1, 1], {"offset": INF}, r"bias\[1\] is inf"),
    ],
)
def test_virtual_tokens_refuse_what_they_cannot_stand_for(clusters, prior, options, message):
    with pytest.raises(AffinityError, match=message):
        Affinity.virtual_tokens(VOCABULARY, torch.tensor(clusters), torch.tensor(prior), **options)


BEGINNINGS = {b"a": 0, b"ab": 1, b"x": 2, b"y": 3}
HUGE = torch.full((4,), 1e308, dtype=torch.float64)  # finite numbers, whose sum is not


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Affinity.first_order(Vocabulary([0, 1], 4), HUGE, 0.1), "first_order: mean_probs"),
        (lambda: Affinity.cold_mass(Vocabulary([0, 1], 4), HUGE), "cold_mass: mean_probs"),
        (
            lambda: Affinity.from_rows(
                [{0: 1.0}, {}], spread=torch.ones(2, 1), prior=torch.stack([HUGE])
            ),
            "Affinity: prior 0",
        ),
        (lambda: Affinity.from_rows(torch.stack([HUGE / 4, HUGE])), "from_rows: row 1"),
        (
            lambda: Affinity.between({b"x": 0, b"abc": 1}, BEGINNINGS, mean_probs=HUGE),
            "between: mean_probs of what begins drafter token 1",
        ),
    ],
)
def test_a_sum_that_overflows_is_refused_by_the_name_of_what_was_given(build, message):
    with pytest.raises(AffinityError, match=message):
        build()


def test_the_cure_that_the_refusal_names_helps():
    with pytest.raises(AffinityError, match="divide its numbers by the largest of them"):
        Affinity.cold_mass(Vocabulary([0, 1], 4), HUGE)
    scaled = Affinity.cold_mass(Vocabulary([0, 1], 4), HUGE / HUGE.max())
    _assert_is(scaled, [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0.5, 0.5]])
