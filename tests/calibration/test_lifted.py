"""Rows that a drafter never had, from the target's."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from rdk_cuda import Vocabulary
from rdk_cuda.calibration import lift_rows, refitted_rows, shifted_rows
from rdk_cuda.drafter import LiftedHead, LiftedRows
from rdk_cuda.recipes.recording import Samples

from .tiny_pair import samples_of

V_T, D_T, D = 300, 12, 8


def example(noise: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, Vocabulary, torch.Tensor]:
    """A target's head, the rows of a drafter, the tokens it kept, and a prior."""
    random = torch.Generator().manual_seed(1)
    target_head = torch.randn(V_T, D_T, generator=random)
    prior = torch.rand(V_T, generator=random).double().clamp_min(0.05).pow(4)
    rows = target_head @ torch.randn(D_T, D, generator=random) + 3
    rows += prior.log().float()[:, None] * torch.linspace(-0.2, 0.2, D)
    rows += noise * torch.randn(rows.shape, generator=random)
    ids = torch.randperm(V_T, generator=random)[:120]
    return target_head, rows, Vocabulary(ids, V_T), prior


def test_a_map_with_constant_and_log_prior_is_found() -> None:
    target_head, rows, vocabulary, prior = example()
    own = rows[vocabulary.draft_ids]
    lifted = lift_rows(target_head, own, vocabulary, prior)
    torch.testing.assert_close(lifted.rows(target_head), rows, rtol=0.01, atol=0.01)
    assert 0 <= lifted.unexplained < 1e-4
    half = lift_rows(target_head.bfloat16(), own.bfloat16(), vocabulary, prior)
    error = (half.rows(target_head.bfloat16()) - rows).norm() / rows.norm()
    assert float(error) < 0.02


def test_what_is_unexplained_is_that_of_tokens_that_were_not_fitted() -> None:
    target_head, _, vocabulary, prior = example()
    noise = torch.randn(120, D, generator=torch.Generator().manual_seed(2))
    alone = lift_rows(target_head, noise, vocabulary, prior).unexplained
    assert 0.8 < alone < 2.0
    target_head, rows, vocabulary, prior = example(noise=1.0)
    some = lift_rows(target_head, rows[vocabulary.draft_ids], vocabulary, prior).unexplained
    assert 0.01 < some < 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_the_rows_without_the_rows(dtype: torch.dtype) -> None:
    target_head, rows, vocabulary, prior = example(noise=0.3)
    lifted = lift_rows(target_head, rows[vocabulary.draft_ids], vocabulary, prior)
    head = LiftedHead(lifted, target_head.to(dtype))
    hidden = torch.randn(5, D, generator=torch.Generator().manual_seed(3)).to(dtype)
    tokens = vocabulary.pruned[torch.arange(35).view(5, 7)].int()
    expected = (hidden.float() @ lifted.rows(target_head).T).gather(1, tokens.long())
    allowed = 1e-4 if dtype == torch.float32 else 0.02
    error = (head(hidden, tokens).float() - expected).norm() / expected.norm()
    assert float(error) < allowed
    tokens[:, 3:] = torch.tensor([-1, V_T, 2**31 - 1, -5], dtype=torch.int32)
    again = head(hidden, tokens)[:, :3]
    torch.testing.assert_close(again.float(), expected[:, :3], rtol=0.1, atol=allowed * 50)


@pytest.mark.parametrize(("constant", "slope"), [(3.0, 0.0), (-2.0, 0.5), (0.0, 0.0)])
def test_a_shift_that_training_never_saw_is_found(constant: float, slope: float) -> None:
    """Rows that are right but for constant and slope, of a drafter that is the target."""
    random = torch.Generator().manual_seed(4)
    target_head = 0.5 * torch.randn(V_T, D, generator=random)
    prior = torch.rand(V_T, generator=random).double().clamp_min(0.05).pow(2)
    vocabulary = Vocabulary(torch.randperm(V_T, generator=random)[:120], V_T)
    given = LiftedRows.of_the_target(D, prior)
    torch.testing.assert_close(given.rows(target_head), target_head)
    shift = -replace(given, shift=torch.tensor([constant, slope])).bias
    hidden = torch.randn(600, D, generator=random)
    logits = hidden @ target_head.T
    logits[:, vocabulary.pruned] -= shift[vocabulary.pruned]
    samples = samples_of(hidden, logits, torch.full((600, 4), -1), torch.arange(600))
    own = target_head[vocabulary.draft_ids]
    found = shifted_rows(given, target_head, own, vocabulary, samples)
    assert found.shift.tolist() == [constant, slope]
    head = LiftedHead(found, target_head)
    tokens = vocabulary.pruned[:6].int().expand(600, 6).contiguous()
    torch.testing.assert_close(head(hidden, tokens), logits[:, vocabulary.pruned[:6]])


def fitting_samples(
    target_head: torch.Tensor, right: LiftedRows, own: torch.Tensor, vocabulary: Vocabulary
) -> Samples:
    """Of a target whose logits are the drafter's own and those of the right lifted rows."""
    random = torch.Generator().manual_seed(5)
    hidden = torch.randn(1200, D, generator=random)
    logits = hidden @ right.rows(target_head).T + right.bias
    logits[:, vocabulary.draft_ids] = hidden @ own.T
    contexts = torch.full((1200, 4), -1)
    return samples_of(hidden, logits, contexts, torch.arange(1200) // 40)


def accepted(
    target_head: torch.Tensor,
    lifted: LiftedRows,
    own: torch.Tensor,
    vocabulary: Vocabulary,
    samples: Samples,
) -> float:
    """The mean of `sum_x min(p, q)` at T = 1, q by the whole lifted head."""
    logits = samples.hidden @ lifted.rows(target_head).T + lifted.bias
    logits[:, vocabulary.draft_ids] = samples.hidden @ own.T
    q = logits.softmax(1).gather(1, samples.targets.long())
    return float(torch.minimum(samples.target_probs(1.0), q).sum(1).mean())


def test_a_map_that_holds_for_pruned_tokens_only_is_found_by_what_is_accepted() -> None:
    """Kept rows say nothing of it, so the closed form cannot know it."""
    target_head, rows, vocabulary, prior = example(noise=0.3)
    own = rows[vocabulary.draft_ids] / 4
    closed = lift_rows(target_head, own, vocabulary, prior)
    random = torch.Generator().manual_seed(6)
    other = closed.map + 0.3 * torch.randn(closed.map.shape, generator=random)
    samples = fitting_samples(target_head, replace(closed, map=other), own, vocabulary)
    each: list[str] = []

    def shown(items: Any, description: str) -> Any:
        each.append(description)
        return items

    found = refitted_rows(closed, target_head, own, vocabulary, samples, shown)
    assert found.refitted
    assert each == ["Calibrating: fitting lifted rows"]
    reached = [
        accepted(target_head, replace(closed, map=map_), own, vocabulary, samples)
        for map_ in (closed.map, found.map, other)
    ]
    assert reached[2] == pytest.approx(1, abs=1e-5)
    assert reached[1] - reached[0] > 0.2 * (reached[2] - reached[0])
    again = refitted_rows(closed, target_head, own, vocabulary, samples)
    assert torch.equal(again.map, found.map)


def test_a_map_that_is_right_and_a_single_document_stay_as_they_are() -> None:
    """The control: what is fitted has to be better on documents that it was not fitted to."""
    target_head, rows, vocabulary, prior = example()
    own = rows[vocabulary.draft_ids] / 4
    right = lift_rows(target_head, own, vocabulary, prior)
    samples = fitting_samples(target_head, right, own, vocabulary)
    assert refitted_rows(right, target_head, own, vocabulary, samples) is right
    wrong = replace(right, map=right.map + 1)
    one = replace(samples, documents=torch.zeros(1200, dtype=torch.int64))
    assert refitted_rows(wrong, target_head, own, vocabulary, one) is wrong


def test_another_target_s_head_is_refused() -> None:
    target_head, rows, vocabulary, prior = example()
    lifted = lift_rows(target_head, rows[vocabulary.draft_ids], vocabulary, prior)
    for other in (target_head[1:], target_head[:, 1:]):
        with pytest.raises(ValueError, match=r"needs \[300, 12\], as the map was made for"):
            LiftedHead(lifted, other)
    with pytest.raises(ValueError, match="1 tokens are kept; needs at least 2"):
        lift_rows(target_head, rows[:1], Vocabulary([0], V_T), prior)
