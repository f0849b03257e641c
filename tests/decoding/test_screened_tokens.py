"""Screened tokens: the largest scores of a low-rank copy of the head's pruned rows in 8 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rdk_cuda import CombinedTokens, RecentTokens, ScreenedTokens, Vocabulary

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
    hidden = states(21)
    together = screen(rank=8).scores(hidden)
    for b in range(21):
        assert torch.equal(screen(rank=8).scores(hidden[b : b + 1]), together[b : b + 1])


def test_hidden_states_without_numbers_offer_tokens_all_the_same() -> None:
    """A decoder's rows that nobody asked for may hold anything."""
    hidden = states(3)
    hidden[1], hidden[2, 0] = torch.nan, torch.inf
    offered = screen()([[]] * 3, hidden=hidden)
    assert bool(torch.isin(offered, PRUNED.int()).all())
    assert torch.equal(offered[:1], screen()([[]], hidden=hidden[:1]))


def test_any_floating_dtype_of_hidden_states_serves() -> None:
    hidden = states(5).bfloat16()
    assert torch.equal(screen().scores(hidden), screen().scores(hidden.float()))


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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"left": torch.zeros(3, 2)},
            r"left has .* torch.float32; needs \[3, 2\] and .*int8",
        ),
        ({"scale": torch.ones(2)}, r"scale has shape \[2\]"),
        ({"bias": torch.full((3,), torch.inf)}, "bias is not finite"),
        ({"right": torch.ones(1, 4)}, r"left has shape \[3, 2\] .*needs \[3, 1\]"),
        (
            {"tokens": torch.tensor([1, 2, 1], dtype=torch.int32)},
            "tokens has a negative id or one",
        ),
        (
            {"tokens": torch.tensor([1, 2, -1], dtype=torch.int32)},
            "tokens has a negative id or one",
        ),
        ({"width": 0}, "width is 0; needs 1 to the number of tokens, 3"),
        ({"width": 4}, "width is 4; needs 1 to the number of tokens, 3"),
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
    with pytest.raises(ValueError, match=r"hidden has shape \[2, 4\]; needs \[B, d\] with d = 13"):
        screen()([[]] * 2, hidden=torch.zeros(2, 4))
