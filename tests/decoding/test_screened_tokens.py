"""Screened tokens: the largest scores of a low-rank copy of the head's pruned rows in 8 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rdk_cuda import CombinedTokens, RecentTokens, ScreenedTokens, Vocabulary
from rdk_cuda.dynamic_tokens.screen import largest

SIZE, D = 203, 13
VOCABULARY = Vocabulary(list(range(0, SIZE, 4)), SIZE)
PRUNED = VOCABULARY.pruned
ROWS = torch.randn(len(PRUNED), D, generator=torch.Generator().manual_seed(0))
BIAS = torch.randn(len(PRUNED), generator=torch.Generator().manual_seed(1))


def states(count: int, seed: int = 2) -> Tensor:
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def screen(rank: int = D, width: int = 7) -> ScreenedTokens:
    """The identity's first rows: the first coordinates of the hidden states."""
    return ScreenedTokens.from_factors(
        VOCABULARY, ROWS[:, :rank], torch.eye(D)[:, :rank].T, BIAS, width=width
    )


@pytest.mark.parametrize("batch", [1, 3, 40])
@pytest.mark.parametrize("rank", [1, 8, D])
def test_scores_are_those_of_the_rounded_rows(batch: int, rank: int) -> None:
    hidden, one = states(batch), screen(rank)
    rows = one.left.double() * one.scale.double()[:, None]
    scores = hidden.double() @ one.right.double().T @ rows.T + BIAS.double()
    # A projected state is rounded to half of 1 / 16256 of its largest entry.
    step = (hidden[:, :rank].abs().amax(1, keepdim=True) / 16256).double()
    bound = 0.5001 * step * rows.abs().sum(1) + 1e-5
    assert bool(((one.scores(hidden) - scores).abs() <= bound).all())
    # And the rows to half of 1 / 127 of theirs.
    assert bool(((rows - ROWS[:, :rank]).abs() <= 0.5001 * one.scale[:, None]).all())


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("rank", [D, 1024])
def test_scores_do_not_depend_on_what_instructions_a_cpu_has(
    rank: int, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(3)
    count = 700
    left = torch.randint(60, 128, (count, rank), generator=generator).to(torch.int8)
    left[::3] = -128
    right = torch.eye(rank)
    one = ScreenedTokens(torch.arange(count).int(), left, torch.ones(count), None, right, 7)
    hidden = 1 - 0.1 * torch.rand(5, rank, generator=generator)
    scores = []
    for capability in ("AVX2", "AVX512"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda own=capability: own)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            scores.append(one.scores(hidden))
    assert torch.equal(*scores)


def test_at_full_rank_the_likeliest_pruned_tokens_are_offered() -> None:
    hidden = states(60)
    exact = hidden @ ROWS.T + BIAS
    values, best = exact.topk(7)
    offered = screen()([[]] * 60, hidden=hidden)
    assert offered.shape == (60, 7)
    assert offered.dtype == torch.int32
    place = torch.searchsorted(PRUNED, offered.long())
    assert torch.equal(PRUNED[place], offered.long())
    # Rounding to 8 bits moves a logit by at most 0.1 here: only near ties change places.
    assert float((exact.gather(1, place) - values).abs().max()) < 0.2
    assert float((place == best).float().mean()) > 0.8


def test_a_row_depends_on_no_other() -> None:
    hidden, one = states(21), screen(rank=8)
    scores, offered = one.scores(hidden), one([[]] * 21, hidden=hidden)
    for b in range(21):
        alone = hidden[b : b + 1]
        assert torch.equal(one.scores(alone), scores[b : b + 1])
        assert torch.equal(one([[]], hidden=alone), offered[b : b + 1])


@pytest.mark.parametrize("size", [1, 7, 40, 333, 5000])
@pytest.mark.parametrize("count", [1, 5, 64])
def test_the_largest_are_those_of_topk(size: int, count: int) -> None:
    values = torch.randn(3, size, generator=torch.Generator().manual_seed(size))
    count = min(count, size)
    assert torch.equal(largest(values, count), values.topk(count, dim=1).indices)


def test_the_largest_are_places_of_the_row_whatever_its_values() -> None:
    values = torch.full((3, 83), -torch.inf)
    values[1, 5], values[2] = 1, torch.nan
    places = largest(values, 9)
    assert places[1, 0] == 5
    assert bool((places >= 0).all() & (places < 83).all())


def test_hidden_states_without_numbers_offer_tokens_all_the_same() -> None:
    """A decoder's rows that nobody asked for may hold anything."""
    hidden, one = states(3), screen()
    hidden[1], hidden[2, 0] = torch.nan, torch.inf
    offered = one([[]] * 3, hidden=hidden)
    assert bool(torch.isin(offered, PRUNED.int()).all())
    assert torch.equal(offered[:1], one([[]], hidden=hidden[:1]))


def test_combined_with_others_it_is_given_the_hidden_states() -> None:
    recent = RecentTokens(VOCABULARY, width=2)
    combined = CombinedTokens([recent, screen()], VOCABULARY, width=5)
    hidden = states(2)
    alone = screen()([[]] * 2, hidden=hidden).tolist()
    for row, likely in zip(combined([[7, 4, 9], []], hidden=hidden).tolist(), alone, strict=True):
        newest = [9, 7] if row[0] == 9 else []
        assert row == (newest + [token for token in likely if token not in newest])[:5]
    assert combined.reads_hidden
    assert not CombinedTokens([recent], VOCABULARY, width=5).reads_hidden
    with pytest.raises(ValueError, match="hidden is None"):
        combined([[7], []])


def test_nothing_is_read_on_the_host() -> None:
    one = screen(rank=8)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        hidden = mode.from_tensor(states(3))
        assert one([[]] * 3, hidden=hidden).shape == (3, 7)


def test_its_bytes_are_those_of_the_copy() -> None:
    one = screen(rank=5)
    assert (one.rank, one.width, one.bytes) == (5, 7, len(PRUNED) * (5 + 8) + 4 * 5 * D)
    unbiased = ScreenedTokens.from_factors(VOCABULARY, ROWS, torch.eye(D))
    assert unbiased.bytes == len(PRUNED) * (D + 4) + 4 * D * D


def test_without_a_bias_it_is_none() -> None:
    hidden, zero = states(9), torch.zeros(len(PRUNED))
    with_it, without = (
        ScreenedTokens.from_factors(VOCABULARY, ROWS, torch.eye(D), bias, width=7)
        for bias in (zero, None)
    )
    assert torch.equal(with_it.scores(hidden), without.scores(hidden))
    offered = with_it([[]] * 9, hidden=hidden)
    assert torch.equal(offered, without([[]] * 9, hidden=hidden))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": torch.zeros(3, 2)}, r"left has .* torch.float32; needs torch.int8 \[3, 2\]"),
        ({"scale": torch.ones(2)}, r"scale has shape \[2\]"),
        ({"bias": torch.full((3,), torch.inf)}, r"bias\[0\] is inf; needs finite"),
        ({"right": torch.ones(1, 4)}, r"left has shape \[3, 2\], right \[1, 4\]"),
        ({"right": torch.ones(3, 4)}, r"left has shape \[3, 2\], right \[3, 4\]"),
        ({"tokens": torch.tensor([1, 2, 1], dtype=torch.int32)}, "tokens has a negative id or one"),
        (
            {"tokens": torch.tensor([1, 2, -1], dtype=torch.int32)},
            "tokens has a negative id or one",
        ),
        ({"width": 0}, "width is 0; needs 1 to 3"),
        ({"width": 4}, "width is 4; needs 1 to 3"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    parts: dict[str, object] = {
        "tokens": torch.tensor([1, 2, 5], dtype=torch.int32),
        "left": torch.ones(3, 2, dtype=torch.int8),
        "scale": torch.ones(3),
        "bias": torch.zeros(3),
        "right": torch.ones(2, 4),
        "width": 2,
    }
    with pytest.raises(ValueError, match=f"ScreenedTokens: {message}"):
        ScreenedTokens(**{**parts, **change})


def test_hidden_states_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hidden has shape \[2, 4\]; needs \[B, 13\]"):
        screen()([[]] * 2, hidden=torch.zeros(2, 4))
