"""Limits and masks that do not fit: bad values have a result, and bad shapes an error."""

from __future__ import annotations

import math

import pytest
import torch

import rdk_cuda
from tests import generators
from tests.devices import MACHINES


@pytest.mark.usefixtures("device")
def test_a_quotient_that_overflows_leaves_a_row_without_a_distribution() -> None:
    batch = generators.batch(generators.affinity("identity", 40), [0, 0])
    batch = batch.replace(
        target_temperature=torch.full((2,), 0.5),
        top_k=torch.tensor([3, 3], dtype=torch.int32),
    )
    batch.target_logits[1, 7] = -3e38
    tokens = torch.ops.rdk.verify(*batch.arguments())[0]
    assert (tokens[:, 0] == -1).tolist() == [False, True]


BAD = [
    *({"top_k": k} for k in (-1, -(2**31))),
    *({"top_p": p} for p in (0.0, -0.5, 1.5, math.nan, math.inf)),
    *({"min_p": p} for p in (-1e-9, 1.5, math.nan)),
]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_bad_limit_leaves_its_row_without_a_distribution(bad: dict[str, float]) -> None:
    batch = generators.batch(generators.affinity("identity", 100), [2, 2, 2], seed=3)
    ((name, value),) = bad.items()
    off = 1.0 if name == "top_p" else 0
    dtype = torch.int32 if name == "top_k" else torch.float32
    limits = batch.replace(**{name: torch.tensor([off, value, off], dtype=dtype)})
    tokens, accepted, _ = torch.ops.rdk.verify(*limits.arguments())
    plain = torch.ops.rdk.verify(*batch.arguments())[0]
    assert tokens[1].tolist() == [-1, -1, -1]
    assert accepted[1] == 0
    assert torch.equal(tokens[::2], plain[::2])
    greedy = limits.replace(target_temperature=torch.zeros(3))
    expected = batch.replace(target_temperature=torch.zeros(3))
    assert torch.equal(
        torch.ops.rdk.verify(*greedy.arguments())[0], torch.ops.rdk.verify(*expected.arguments())[0]
    )


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_with_nothing_allowed_has_no_distribution(temperature: float) -> None:
    batch = generators.batch(generators.affinity("identity", 70), [0, 0])
    words = torch.tensor([[0, 0, 0], [0, 8, 0]], dtype=torch.int32)
    batch = batch.replace(
        allowed=words, target_temperature=torch.full((2,), temperature), logprobs=1
    )
    tokens, _, logprobs = torch.ops.rdk.verify(*batch.arguments())
    assert tokens.tolist() == [[-1], [35]]
    assert logprobs.tolist() == [[-math.inf], [0.0]]


@pytest.mark.usefixtures("device")
def test_what_is_not_allowed_is_not_seen() -> None:
    """NaN there does no harm, but the raw log-probability is NaN."""
    batch = generators.batch(generators.affinity("identity", 40), [0])
    batch.target_logits[0, 7] = math.nan
    words = torch.tensor([[~(1 << 7), -1]], dtype=torch.int32)
    tokens, _, processed = torch.ops.rdk.verify(
        *batch.replace(allowed=words, logprobs=1).arguments()
    )
    assert tokens[0, 0] >= 0
    assert processed.isfinite().all()
    assert (
        torch.ops.rdk.verify(*batch.replace(allowed=words, logprobs=2).arguments())[2].isnan().all()
    )
    assert torch.ops.rdk.verify(*batch.arguments())[0].tolist() == [[-1]]


REFUSED = [
    ("top_k", torch.zeros(2), "dtype Float"),
    ("top_k", torch.zeros(3, dtype=torch.int32), r"shape \[3\]"),
    ("top_p", torch.ones(2, dtype=torch.float64), "dtype Double"),
    ("min_p", torch.zeros(1, 2), r"shape \[1, 2\]"),
    ("allowed", torch.zeros(4, 2), "dtype Float"),
    ("allowed", torch.zeros(4, 3, dtype=torch.int32), r"shape \[4, 3\]"),
    ("allowed", torch.zeros(3, 2, dtype=torch.int32), "3 rows"),
    ("allowed", torch.zeros(2, 4, dtype=torch.int32).T[:, :2].T.T, "shape|stride"),
    ("draft_stats", torch.ones(2, 4), r"shape \[2, 4\]"),
    ("draft_stats", torch.ones(2, 1), r"shape \[2, 1\]"),
    ("logprobs", 3, "is 3"),
    ("logprobs", -1, "is -1"),
]


@pytest.mark.parametrize(("name", "value", "found"), REFUSED)
def test_what_does_not_fit_is_refused_by_name(name: str, value: object, found: str) -> None:
    batch = generators.batch(generators.affinity("identity", 40), [1, 1])
    with pytest.raises(RuntimeError, match=rf"rdk::verify: {name} .*({found}).*, but needs "):
        torch.ops.rdk.verify(*batch.replace(**{name: value}).arguments())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("threshold", [math.nan, math.inf])
def test_a_draft_with_an_unusable_threshold_is_rejected(threshold: float) -> None:
    batch = generators.batch(generators.affinity("identity", 100), [1] * 20)
    rows = batch.draft_logits.shape[0]
    stats = torch.cat([torch.ones(rows, 2), torch.full((rows, 1), threshold)], 1)
    assert not torch.ops.rdk.verify(*batch.replace(draft_stats=stats).arguments())[1].any()


@pytest.mark.parametrize("operator", ["draft", "redistribute"])
@pytest.mark.parametrize("given", ["top_k", "top_p", "min_p"])
def test_the_kernels_of_drafts_refuse_by_name_what_they_lack(
    operator: str, given: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("emulated").set_machine(*MACHINES["small-batches"])
    affinity, ones = generators.affinity("identity", 40), torch.ones(2)
    value = ones.int() if given == "top_k" else ones
    arguments: dict[str, tuple[object, ...]] = {
        "draft": (ones, torch.arange(2), torch.arange(2), *affinity.by_draft),
        "redistribute": (ones, *affinity.by_target, affinity.row_top),
    }
    with pytest.raises(RuntimeError, match=f"rdk::{operator}: {given} is given, .*CUDA kernels"):
        getattr(torch.ops.rdk, operator)(torch.zeros(2, 40), *arguments[operator], **{given: value})


@pytest.mark.parametrize("given", ["top_k", "top_p", "min_p", "allowed"])
def test_the_kernel_of_trees_refuses_by_name_what_it_lacks(
    given: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("emulated").set_machine(*MACHINES["small-batches"])
    values = {
        "top_k": torch.ones(2, dtype=torch.int32), "top_p": torch.ones(2), "min_p": torch.ones(2),
        "allowed": torch.zeros(4, 2, dtype=torch.int32),
    }  # fmt: skip
    trees = generators.trees([1, 1], 40).replace(**{given: values[given]})
    with pytest.raises(RuntimeError, match=f"rdk::verify_tree: {given} is given, .*CUDA kernels"):
        torch.ops.rdk.verify_tree(*trees.arguments())


def test_the_python_layer_refuses_what_does_not_fit() -> None:
    affinity = generators.affinity("identity", 40)
    copied = rdk_cuda.Draft.without_distribution(torch.tensor([[1]]), seeds=1)
    target = torch.zeros(1, 2, 40)
    with pytest.raises(ValueError, match=r"allowed has shape \[2, 2\]; needs \[1, 2, ceil"):
        rdk_cuda.verify(target, copied, affinity, allowed=torch.zeros(2, 2, dtype=torch.int32))
    with pytest.raises(ValueError, match="logprobs is 'all'; needs"):
        rdk_cuda.verify(target, copied, affinity, logprobs="all")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"top_p has shape \[2\]; needs \[1\]"):
        rdk_cuda.verify(target, copied, affinity, top_p=[0.5, 0.5])
