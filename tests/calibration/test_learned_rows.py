"""Rows learned over few entries: joint masses, likelihood, acceptance; against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdk_cuda import redistribute
from rdk_cuda.affinity import Affinity
from rdk_cuda.calibration import (
    DraftPairs,
    draft_pairs,
    joint_masses,
    joint_pattern,
    joint_rows,
    maximise_acceptance,
    maximise_likelihood,
)
from rdk_cuda.calibration import (
    pairs as pairs_module,
)
from rdk_cuda.calibration.drafter import PrunedDrafter, sampled_acceptance
from rdk_cuda.calibration.pairs import redistributed
from rdk_cuda.dynamic import RecentTokens
from rdk_cuda.vocabulary import Vocabulary

from . import recorded
from .recorded import V_T, dense_target, random_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

# What 400 steps may lack of the linear program's optimum, an acceptance rate of about 0.55.
GAP = 1e-3


def _affinity(kind, vocabulary):
    """Without redistribution, with a masked row, with virtual tokens, and with a prior."""
    if kind == "masked row":
        ids = torch.cat([vocabulary.draft_ids, torch.tensor([-1])])
        return Affinity.intersection(Vocabulary(ids, V_T))
    clusters = torch.full((V_T,), -1)
    clusters[vocabulary.pruned] = torch.arange(vocabulary.pruned.numel()) % 2
    if kind == "virtual":
        return Affinity.virtual_tokens(vocabulary, clusters, torch.arange(1.0, V_T + 1))
    if kind == "cold mass":
        return Affinity.cold_mass(vocabulary, torch.arange(1.0, V_T + 1))
    return Affinity.intersection(vocabulary)


def _drafter(kind="plain", dynamic=False, seed=0):
    vocabulary = recorded.vocabulary(seed=seed)
    affinity = _affinity(kind, vocabulary)
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(affinity.draft_size, recorded.D, generator=random)
    recent = RecentTokens(vocabulary, width=3) if dynamic else None
    return PrunedDrafter(vocabulary, affinity, weight, None, recent)


KINDS = ["plain", "masked row", "virtual", "cold mass"]


class TestPairs:
    @pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("temperature", recorded.TEMPERATURES)
    def test_q_at_the_targets_is_what_the_operator_makes(
        self, kind, dynamic, temperature, monkeypatch
    ):
        monkeypatch.setattr(pairs_module, "_BLOCK_ENTRIES", 100)  # blocks of a few samples
        samples, head = recorded.samples(width=7), recorded.full_head()
        drafter = _drafter(kind, dynamic)
        pairs = draft_pairs(samples, drafter, head, temperature)
        columns = drafter.columns(head, samples.hidden, samples.contexts)
        q = redistribute(affinity=drafter.affinity, temperature=temperature, **columns)
        expected = q.gather(1, samples.targets.long())
        torch.testing.assert_close(
            redistributed(pairs, drafter.affinity), expected, rtol=1e-5, atol=1e-6
        )

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_gradient_is_that_of_the_dense_product(self, kind):
        samples = recorded.samples(width=7)
        drafter = _drafter(kind)
        pairs = draft_pairs(samples, drafter, recorded.full_head(), 1.0)
        affinity = drafter.affinity
        rows, targets, _ = pairs_module.entries_of(affinity)
        weights = torch.rand(pairs.targets.shape, generator=torch.Generator().manual_seed(1))
        mapping = pairs_module.Redistribution(pairs, rows, targets, affinity.prior)
        by_entry, by_spread = mapping.gradient(weights)
        dense = torch.zeros(len(pairs), V_T).scatter_(1, pairs.targets, weights)
        joint = pairs.draft_probs.T @ dense / len(pairs)
        torch.testing.assert_close(by_entry.float(), joint[rows, targets])
        torch.testing.assert_close(by_spread.float(), joint @ affinity.prior.T)


class TestJointMasses:
    @pytest.mark.parametrize("entries", [1, 2, 4, 50])
    def test_the_pattern_is_the_largest_of_the_dense_product_and_the_token_itself(
        self, entries, monkeypatch
    ):
        monkeypatch.setattr(joint_masses, "_BLOCK_ROWS", 2)
        for seed in range(5):
            pairs, affinity = random_pairs(seed, width=6)
            joint = pairs.draft_probs.T @ dense_target(pairs) / len(pairs)
            pattern = joint_pattern(pairs, affinity, entries)
            own = affinity.dense() > 0
            others = joint.masked_fill(own, 0).topk(min(entries - 1, joint.shape[1]), 1)
            expected = own | torch.zeros_like(own).scatter(1, others.indices, others.values > 0)
            listed = torch.zeros_like(own)
            listed[tuple(pattern.indices())] = True
            assert torch.equal(listed, expected)
            torch.testing.assert_close(pattern.to_dense(), joint * expected)

    def test_the_members_of_a_virtual_token_stay_in_its_row(self):
        drafter = _drafter("virtual")
        pairs = draft_pairs(recorded.samples(), drafter, recorded.full_head(), 1.0)
        pattern = joint_pattern(pairs, drafter.affinity, 1).indices()
        expected = drafter.affinity.dense().nonzero().T
        assert torch.equal(pattern, expected)

    def test_a_token_that_no_sample_reaches_keeps_itself(self):
        pairs, affinity = random_pairs(0)
        never = pairs.draft_probs.clone()
        never[:, 2] = 0
        pairs = replace(pairs, draft_probs=never)
        pattern = joint_pattern(pairs, affinity, 4)
        for learned in (
            joint_rows(pattern, affinity),
            maximise_likelihood(pairs, affinity, pattern, steps=3).affinity,
            maximise_acceptance(pairs, affinity, pattern, steps=3).affinity,
        ):
            assert torch.equal(learned.dense()[2], affinity.dense()[2])
            assert not torch.equal(learned.dense()[1], affinity.dense()[1])

    @pytest.mark.parametrize("keep", [0.0, 0.25, 1.0])
    def test_joint_rows_are_the_joint_masses_normalised(self, keep):
        pairs, affinity = random_pairs(3)
        pattern = joint_pattern(pairs, affinity, 4)
        joint = pattern.to_dense()
        expected = keep * affinity.dense() + (1 - keep) * joint / joint.sum(1, keepdim=True)
        torch.testing.assert_close(
            joint_rows(pattern, affinity, keep=keep).dense(), expected, rtol=0, atol=1e-8
        )

    def test_with_all_entries_they_are_what_the_target_says_on_average(self):
        pairs, affinity = random_pairs(4)
        learned = joint_rows(joint_pattern(pairs, affinity, 9), affinity).dense()
        q, p = pairs.draft_probs, dense_target(pairs)
        torch.testing.assert_close(learned, q.T @ p / q.sum(0)[:, None], rtol=0, atol=1e-8)


def _optimum(pairs, pattern, prior):
    """The largest acceptance of all rows over the pattern, by linear programming.

    Maximise `sum t_nx` with `t <= p`, `t <= q` and rows that sum to 1.
    """
    linprog = pytest.importorskip("scipy.optimize").linprog
    rows, targets = pattern.indices()
    count, width = pairs.targets.shape
    reach = torch.einsum("ne,nme->nme", pairs.draft_probs[:, rows], _hits(pairs, targets))
    if prior is not None:
        at_targets = (prior / prior.sum())[pairs.targets]
        spread = torch.einsum("ni,nm->nmi", pairs.draft_probs, at_targets)
        reach = torch.cat([reach, spread], 2)
        rows = torch.cat([rows, torch.arange(pairs.draft_probs.shape[1])])
    t = count * width
    masses = reach.reshape(t, -1).numpy()
    sums = np.zeros((pairs.draft_probs.shape[1], rows.numel() + t))
    sums[rows.numpy(), np.arange(rows.numel())] = 1
    solution = linprog(
        np.concatenate([np.zeros(rows.numel()), np.full(t, -1 / count)]),
        A_ub=np.concatenate([-masses, np.eye(t)], 1),
        b_ub=pairs.given.flatten().numpy(),
        A_eq=sums,
        b_eq=np.ones(sums.shape[0]),
        bounds=[(0, 1)] * rows.numel() + [(0, p) for p in pairs.target_probs.flatten().tolist()],
    )
    assert solution.success
    return -solution.fun


def _hits(pairs, targets):
    return (pairs.targets[:, :, None] == targets).double()


class TestAcceptance:
    @pytest.mark.parametrize("prior", [None, torch.arange(1.0, 10).double()], ids=["", "prior"])
    @pytest.mark.parametrize("entries", [2, 4, 9])
    def test_it_reaches_the_optimum_of_the_linear_program(self, entries, prior):
        for seed in range(2):
            pairs, affinity = random_pairs(seed)
            pattern = joint_pattern(pairs, affinity, entries)
            best = _optimum(pairs, pattern, prior)
            learned = maximise_acceptance(
                pairs, affinity, pattern, prior=prior, steps=400, evidence=0.0
            )
            assert best - GAP <= learned.history[-1] <= best + 1e-9
            assert learned.history[0] < best - 100 * GAP  # there was something to be learned
            assert _acceptance(pairs, learned.affinity) == pytest.approx(
                learned.history[-1], abs=1e-6
            )

    def test_it_learns_beside_dynamic_tokens(self):
        """What they already give is not given again."""
        drafter = _drafter("plain", dynamic=True)
        pairs = draft_pairs(recorded.samples(width=8), drafter, recorded.full_head(), 1.0)
        assert pairs.given.any()
        assert (pairs.draft_probs.sum(1) < 0.999).any()
        pattern = joint_pattern(pairs, drafter.affinity, 4)
        learned = maximise_acceptance(pairs, drafter.affinity, pattern, steps=400, evidence=0.0)
        best = _optimum(
            replace(pairs, **{name: getattr(pairs, name).double() for name in _PROBS}),
            pattern,
            None,
        )
        assert best - GAP <= learned.history[-1] <= best + 1e-6
        finished = replace(drafter, affinity=learned.affinity)
        rates = sampled_acceptance(recorded.samples(width=8), finished, recorded.full_head(), 1.0)
        assert float(rates.mean()) == pytest.approx(learned.history[-1], abs=1e-6)

    def test_a_drafter_that_needs_nothing_is_left_as_it_is(self):
        pairs, _ = random_pairs(0, kept=9)
        everything = Affinity.intersection(Vocabulary.identity(9))
        same = replace(
            pairs,
            targets=torch.arange(9).expand(len(pairs), 9),
            target_probs=pairs.draft_probs,
        )
        learned = maximise_acceptance(same, everything, joint_pattern(same, everything, 4))
        assert learned.history[-1] == pytest.approx(1.0)
        assert torch.equal(learned.affinity.dense(), everything.dense())

    def test_what_is_learned_by_heart_is_not_taken_for_better(self):
        """Drafter and target are independent here: nothing carries over to other samples."""
        gains = {True: [], False: []}
        for seed in range(5):
            everything, affinity = random_pairs(seed, count=60, kept=5)
            few, others, unseen = (
                _some(everything, at) for at in (range(3), range(3, 30), range(30, 60))
            )
            pattern = joint_pattern(few, affinity, 4)
            for judged in gains:
                learned = maximise_acceptance(
                    few, affinity, pattern, steps=60, validation=others if judged else None
                )
                judge = others if judged else few
                rate = _acceptance(judge, learned.affinity)
                assert rate == pytest.approx(learned.history[-1], abs=1e-6)
                gains[judged].append(_acceptance(unseen, learned.affinity))
                assert _acceptance(others, learned.affinity) >= judged * (
                    _acceptance(others, affinity) - 1e-6
                )
        assert sum(gains[True]) > sum(gains[False])

    def test_rows_with_little_evidence_hardly_move(self):
        pairs, affinity = random_pairs(2)
        rare = pairs.draft_probs.clone()
        rare[:, 0] *= 1e-4
        pairs = replace(pairs, draft_probs=rare / rare.sum(1, keepdim=True))
        pattern = joint_pattern(pairs, affinity, 4)
        kept = []
        for evidence in (0.0, 10.0):
            learned = maximise_acceptance(pairs, affinity, pattern, steps=20, evidence=evidence)
            kept.append(float((learned.affinity.dense() * affinity.dense())[0].sum()))
        assert kept[0] < 0.5
        assert kept[1] > 0.85


class TestLikelihood:
    @pytest.mark.parametrize("prior", [None, torch.arange(1.0, 10).double()], ids=["", "prior"])
    def test_it_reaches_a_point_where_no_row_can_gain(self, prior):
        """The conditions of Karush, Kuhn and Tucker; the objective is concave.

        `E[q'_i p(x) / q(x)]` is the same for all entries of a row that have mass, and not more
        for the others.
        """
        for seed in range(3):
            pairs, affinity = random_pairs(seed)
            pattern = joint_pattern(pairs, affinity, 4)
            learned = maximise_likelihood(pairs, affinity, pattern, prior=prior, steps=3000)
            matrix = learned.affinity.dense()
            q = pairs.draft_probs @ matrix
            p = dense_target(pairs)
            slopes = pairs.draft_probs.T @ torch.where(q > 0, p / q, 0.0) / len(pairs)
            row, target = pattern.indices()
            gains = slopes[row, target]
            level = (slopes * matrix).sum(1)
            assert bool((gains <= level[row] * (1 + 2e-3)).all())
            # A row may have mass there by the prior alone; its entry of S then has none.
            rows, targets, masses = pairs_module.entries_of(learned.affinity)
            of_s = torch.zeros(matrix.shape).index_put_((rows, targets), masses)
            has_mass = of_s[row, target] > 1e-2
            torch.testing.assert_close(gains[has_mass], level[row][has_mass], rtol=2e-3, atol=0)
            # The start is no such point.
            early = maximise_likelihood(pairs, affinity, pattern, prior=prior, steps=1)
            assert early.history[-1] < learned.history[-1] - 0.01

    def test_the_history_is_the_likelihood_of_the_affinity(self):
        pairs, affinity = random_pairs(2)
        pattern = joint_pattern(pairs, affinity, 9)
        learned = maximise_likelihood(pairs, affinity, pattern, steps=5)
        q = pairs.draft_probs @ learned.affinity.dense()
        expected = float(torch.xlogy(dense_target(pairs), q).sum() / len(pairs))
        assert learned.history[-1] == pytest.approx(expected, abs=1e-6)

    def test_tokens_that_nothing_leads_to_are_left_out(self):
        pairs, affinity = random_pairs(2)
        pattern = joint_pattern(pairs, affinity, 1)  # pruned tokens cannot be reached
        history = maximise_likelihood(pairs, affinity, pattern, steps=2).history
        assert all(map(math.isfinite, history))

    def test_a_kept_token_that_the_target_never_emits_gives_all_of_its_mass_away(self):
        pairs, affinity = random_pairs(4)
        kept = affinity.row_targets.long()
        never = pairs.targets == kept[0]
        probs = pairs.target_probs.where(~never, 0.0)
        pairs = replace(pairs, target_probs=probs / probs.sum(1, keepdim=True))
        pattern = joint_pattern(pairs, affinity, entries=4)
        learned, history = maximise_likelihood(pairs, affinity, pattern)
        assert all(map(math.isfinite, history))
        assert float(learned.dense()[:, kept[0]].sum()) == 0
        torch.testing.assert_close(learned.dense().sum(1), torch.ones(5, dtype=torch.float64))


METHODS = [maximise_likelihood, maximise_acceptance]


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 10**6),
    count=st.integers(1, 6),
    target_size=st.integers(2, 8),
    data=st.data(),
)
def test_whatever_the_pairs_objectives_never_fall_and_rows_stay_distributions(
    method, seed, count, target_size, data
):
    kept = data.draw(st.integers(1, target_size))
    width = data.draw(st.integers(1, target_size))
    pairs, affinity = random_pairs(seed, count, target_size, kept, width)
    pattern = joint_pattern(pairs, affinity, data.draw(st.integers(1, 9)))
    random = torch.Generator().manual_seed(seed)
    prior = torch.rand(target_size, generator=random) if data.draw(st.booleans()) else None
    learned = method(pairs, affinity, pattern, prior=prior, steps=6)
    assert len(learned.history) == 7
    assert bool((np.diff(learned.history) >= -1e-12).all())
    matrix = learned.affinity.dense()
    assert bool((matrix >= 0).all())
    # Exactly 1 in whole numbers, which Affinity checks; the dense matrix rounds.
    torch.testing.assert_close(matrix.sum(1), torch.ones(kept).double(), rtol=0, atol=1e-12)
    if prior is None:
        listed = torch.zeros(matrix.shape, dtype=torch.bool)
        listed[tuple(pattern.indices())] = True
        assert not matrix[~listed].any()
    assert torch.equal(learned.affinity.bias, affinity.bias)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_masked_virtual_and_cold_rows_are_learned_as_well(method, kind):
    samples, head, drafter = recorded.samples(), recorded.full_head(), _drafter(kind)
    pairs = draft_pairs(samples, drafter, head, 0.6)
    pattern = joint_pattern(pairs, drafter.affinity, 4)
    learned = method(pairs, drafter.affinity, pattern, steps=30)
    assert learned.history[-1] > learned.history[0]
    assert torch.equal(learned.affinity.bias, drafter.affinity.bias)
    if method is maximise_acceptance:
        finished = replace(drafter, affinity=learned.affinity)
        rates = sampled_acceptance(samples, finished, head, 0.6)
        assert float(rates.mean()) == pytest.approx(learned.history[-1], abs=1e-6)


@pytest.mark.parametrize("method", [*METHODS, None])
def test_a_renamed_target_vocabulary_renames_the_affinity(method):
    def learned(pairs, affinity, prior):
        pattern = joint_pattern(pairs, affinity, 4)
        if method is None:
            return joint_rows(pattern, affinity).dense()
        return method(pairs, affinity, pattern, prior=prior, steps=20).affinity.dense()

    for seed in range(3):
        pairs, affinity = random_pairs(seed)
        draft_ids = affinity.dense().argmax(1)
        names = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
        prior = torch.arange(1.0, 10).double()
        renamed_prior = torch.empty_like(prior).index_copy_(0, names, prior)
        renamed = replace(pairs, targets=names[pairs.targets])
        other = Affinity.intersection(Vocabulary(names[draft_ids], 9))
        plain = learned(pairs, affinity, prior)
        permuted = learned(renamed, other, renamed_prior)
        torch.testing.assert_close(permuted[:, names], plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_arguments_that_do_not_fit_are_refused(method):
    pairs, affinity = random_pairs(0)
    pattern = joint_pattern(pairs, affinity, 2)
    name = method.__name__
    with pytest.raises(ValueError, match=rf"{name}: pattern has shape \[5, 9\] and layout"):
        method(pairs, affinity, pattern.to_dense())
    with pytest.raises(ValueError, match=f"{name}: prior is 0 everywhere"):
        method(pairs, affinity, pattern, prior=torch.zeros(9))
    with pytest.raises(ValueError, match=rf"{name}: affinity is \[9, 9\]; needs .* \[5, 9\]"):
        method(pairs, Affinity.intersection(Vocabulary.identity(9)), pattern)
    with pytest.raises(ValueError, match="entries is 0"):
        joint_pattern(pairs, affinity, 0)
    with pytest.raises(ValueError, match="keep is 2"):
        joint_rows(pattern, affinity, keep=2)


_PROBS = ("draft_probs", "target_probs", "given")


def _acceptance(pairs: DraftPairs, affinity: Affinity) -> float:
    q = pairs.draft_probs @ affinity.dense()
    return float(torch.minimum(dense_target(pairs), q).sum(1).mean())


def _some(pairs: DraftPairs, index: range) -> DraftPairs:
    return replace(pairs, **{name: getattr(pairs, name)[index] for name in (*_PROBS, "targets")})
