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


def test_a_vocabulary_may_be_all_of_its_target_or_nothing_of_it():
    assert Vocabulary.identity(4) == Vocabulary(range(4), 4)
    assert Vocabulary.identity(4).pruned.numel() == 0
    foreign = Vocabulary([-1, -1], target_size=3)
    assert foreign.kept.numel() == 0
    assert foreign.pruned.tolist() == [0, 1, 2]


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


def test_tokens_to_keep_always_take_the_place_of_the_least_likely_ones():
    scores = torch.tensor([0.1, 0.3, 0.1, 0.4, 0.1])
    for always, count, kept in (
        ([4], 3, [1, 3, 4]),
        (torch.tensor([3]), 3, [0, 1, 3]),
        ([4, 2, 4], 2, [2, 4]),
        (torch.tensor([], dtype=torch.int64), 2, [1, 3]),
    ):
        assert Vocabulary.most_likely(scores, count, always=always).draft_ids.tolist() == kept
    variances = torch.tensor([-float("inf"), -2.0, float("inf"), 0.0])  # scores of any kind
    assert Vocabulary.most_likely(variances, 2, always=[0]).draft_ids.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("scores", "count", "always", "message"),
    [
        *(([1.0] * 3, n, (), f"count is {n}; needs 1 to 3") for n in (0, -1, 4)),
        ([1.0, float("nan")], 1, (), r"scores\[1\] is nan"),
        ([[1.0, 1.0]] * 2, 1, (), r"shape \[2, 2\]"),
        ([1.0] * 3, 2, [3], r"always\[0\] is 3; needs target ids in \[0, 3\)"),
        ([1.0] * 3, 2, [0, -1], r"always\[0\] is -1"),
        ([1.0] * 3, 2, torch.tensor([True] * 3), "always has .* dtype torch.bool; needs integers"),
        ([1.0] * 3, 2, [0, 1, 2], "count is 2; needs 3 to 3"),
    ],
)
def test_most_likely_refuses_what_it_cannot_keep(scores, count, always, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary.most_likely(torch.tensor(scores), count, always=always)


def test_coverage_is_the_share_of_the_mass_on_kept_tokens():
    vocabulary = Vocabulary([3, -1, 0], target_size=4)
    assert vocabulary.coverage(torch.tensor([1, 2, 3, 4])) == 0.5
    assert vocabulary.coverage(torch.tensor([0.5, 0.0, 0.0, 0.5])) == 1.0
    assert Vocabulary([-1], target_size=2).coverage(torch.ones(2)) == 0.0


@pytest.mark.parametrize(
    "mean_probs",
    [
        *([1.0], [1.0, -1.0], [0.0, 0.0], [1.0, float("nan")], [1.0, float("inf")]),
        torch.tensor([1e308, 1e308], dtype=torch.float64),  # whose sum is not finite
    ],
)
def test_coverage_refuses_what_is_not_a_distribution(mean_probs):
    with pytest.raises(ValueError, match=r"coverage: mean_probs.*; needs (finite numbers|\[2\])"):
        Vocabulary([0], target_size=2).coverage(torch.as_tensor(mean_probs))


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
