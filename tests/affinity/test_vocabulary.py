"""What a Vocabulary promises."""

import dataclasses

import pytest
import torch

from rdk_cuda.vocabulary import Vocabulary


def test_kept_and_pruned_split_the_target_vocabulary():
    vocabulary = Vocabulary([5, -1, 0, 3, -1], target_size=7)
    assert vocabulary.draft_size == 5
    assert vocabulary.draft_ids.tolist() == [5, -1, 0, 3, -1]
    assert vocabulary.kept.tolist() == [0, 3, 5]
    assert vocabulary.pruned.tolist() == [1, 2, 4, 6]


def test_identity_prunes_nothing():
    vocabulary = Vocabulary.identity(4)
    assert vocabulary == Vocabulary(range(4), 4)
    assert vocabulary.pruned.numel() == 0


def test_a_drafter_may_share_no_token_with_its_target():
    vocabulary = Vocabulary([-1, -1], target_size=3)
    assert vocabulary.kept.numel() == 0
    assert vocabulary.pruned.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_ids_come_in_any_integer_type_and_become_int64(dtype):
    vocabulary = Vocabulary(torch.tensor([2, 0], dtype=dtype), target_size=3)
    assert vocabulary.draft_ids.dtype == torch.int64
    assert vocabulary == Vocabulary([2, 0], target_size=3)


@pytest.mark.parametrize(
    ("draft_ids", "target_size", "message"),
    [
        ([0, 1, 0], 3, r"draft_ids\[0\] and draft_ids\[2\] are both 0"),
        ([0, 3], 3, r"draft_ids\[1\] is 3; needs a target id in \[0, 3\)"),
        ([0, -2], 3, r"draft_ids\[1\] is -2"),
        ([0], 0, "target_size is 0"),
        ([0], -5, "target_size is -5"),
        ([0], 2**31, "target_size is 2147483648"),
        ([], 3, r"shape \[0\]"),
        ([[0, 1]], 3, r"shape \[1, 2\]"),
        ([0.0, 1.0], 3, "dtype torch.float64"),
        ([True, False], 3, "dtype torch.bool"),
    ],
)
def test_what_is_not_a_vocabulary_is_refused_by_name(draft_ids, target_size, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(draft_ids, target_size)


def test_most_likely_keeps_the_lowest_ids_among_equals_in_id_order():
    mean_probs = torch.tensor([0.1, 0.3, 0.1, 0.4, 0.1])
    assert Vocabulary.most_likely(mean_probs, 3).draft_ids.tolist() == [0, 1, 3]
    assert Vocabulary.most_likely(mean_probs, 5) == Vocabulary.identity(5)
    many_equal = torch.ones(10_000)
    assert Vocabulary.most_likely(many_equal, 100).draft_ids.tolist() == list(range(100))


@pytest.mark.parametrize("count", [0, -1, 4])
def test_most_likely_refuses_a_count_out_of_range(count):
    with pytest.raises(ValueError, match=f"count is {count}; needs 1 to V_t = 3"):
        Vocabulary.most_likely(torch.ones(3), count)


def test_most_likely_refuses_nan_and_matrices():
    with pytest.raises(ValueError, match="NaN"):
        Vocabulary.most_likely(torch.tensor([1.0, float("nan")]), 1)
    with pytest.raises(ValueError, match=r"shape \[2, 2\]"):
        Vocabulary.most_likely(torch.ones(2, 2), 1)


def test_tokens_to_keep_always_take_the_place_of_the_least_likely_ones():
    scores = torch.tensor([0.1, 0.3, 0.1, 0.4, 0.1])
    assert Vocabulary.most_likely(scores, 3, always=[4]).draft_ids.tolist() == [1, 3, 4]
    assert Vocabulary.most_likely(scores, 3, always=torch.tensor([3])) == (
        Vocabulary.most_likely(scores, 3)
    )
    assert Vocabulary.most_likely(scores, 2, always=[4, 2, 4]).draft_ids.tolist() == [2, 4]
    assert Vocabulary.most_likely(scores, 2, always=torch.tensor([], dtype=torch.int64)) == (
        Vocabulary.most_likely(scores, 2)
    )


def test_a_score_may_be_any_number():
    variances = torch.tensor([-float("inf"), -2.0, float("inf"), 0.0])
    assert Vocabulary.most_likely(variances, 2).draft_ids.tolist() == [2, 3]
    assert Vocabulary.most_likely(variances, 2, always=[0]).draft_ids.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("always", "message"),
    [
        ([3], r"always holds 3; needs target ids in \[0, 3\)"),
        ([0, -1], "always holds -1"),
        (torch.tensor([True, False, True]), "always has dtype torch.bool; needs target ids"),
        ([0, 1, 2], "always holds 3 tokens and count is 2; needs a count of at least 3"),
    ],
)
def test_most_likely_refuses_tokens_that_it_cannot_keep(always, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.most_likely(torch.ones(3), 2, always=always)


def test_coverage_is_the_share_of_the_mass_on_kept_tokens():
    vocabulary = Vocabulary([3, -1, 0], target_size=4)
    assert vocabulary.coverage(torch.tensor([1, 2, 3, 4])) == 0.5
    assert vocabulary.coverage(torch.tensor([0.5, 0.0, 0.0, 0.5])) == 1.0
    assert Vocabulary([-1], target_size=2).coverage(torch.ones(2)) == 0.0


@pytest.mark.parametrize(
    "mean_probs", [[1.0], [1.0, -1.0], [0.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]]
)
def test_coverage_refuses_what_is_not_a_distribution(mean_probs):
    with pytest.raises(ValueError, match=r"needs \[V_t\] = \[2\] finite numbers"):
        Vocabulary([0], target_size=2).coverage(torch.tensor(mean_probs))


def test_equality_is_of_the_maps_not_of_the_token_sets():
    vocabulary = Vocabulary([0, 2], target_size=3)
    assert vocabulary == Vocabulary(torch.tensor([0, 2]), target_size=3)
    assert hash(vocabulary) == hash(Vocabulary([0, 2], target_size=3))
    assert vocabulary != Vocabulary([2, 0], target_size=3)
    assert vocabulary != Vocabulary([0, 2], target_size=4)
    assert vocabulary != [0, 2]


def test_a_vocabulary_cannot_be_changed():
    ids = torch.tensor([0, 2])
    vocabulary = Vocabulary(ids, target_size=3)
    ids[0] = 1
    assert vocabulary.draft_ids.tolist() == [0, 2]
    with pytest.raises(dataclasses.FrozenInstanceError):
        vocabulary.target_size = 4


def test_repr_shows_the_sizes():
    assert repr(Vocabulary([4, -1], 6)) == (
        "Vocabulary(draft_size=2, target_size=6, kept=1, pruned=5)"
    )
