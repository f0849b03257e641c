"""Screens within a budget of bytes, and what calibration makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from rdk_cuda import ScreenedTokens, Vocabulary
from rdk_cuda.calibration import Options, low_rank_factors, screens_within
from rdk_cuda.dynamic_tokens import screens_of
from rdk_cuda.recipes.stages.pruning import DYNAMIC, PRUNED, RECOMMENDED, VIRTUAL, Pruning

from .markov_pair import TEMPERATURES, MarkovPair, material, rate

SIZE, D = 2000, 64
VOCABULARY = Vocabulary(range(0, SIZE, 10), SIZE)
HEAD = torch.randn(SIZE, D, generator=torch.Generator().manual_seed(0)), None
ROW, PRUNED_ROWS = 4 * D, SIZE - 200


def _screens(share: float, batch: int = 1) -> list[ScreenedTokens]:
    mean_probs = torch.rand(SIZE, generator=torch.Generator().manual_seed(1))
    return list(screens_within(share, HEAD, VOCABULARY, torch.eye(D), mean_probs, batch=batch))


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_screens_keep_the_budget_and_use_it(share: float, batch: int) -> None:
    screens = _screens(share, batch)
    budget = share * PRUNED_ROWS * ROW
    assert screens
    for screen in screens:
        read = screen.bytes + batch * screen.width * ROW
        assert read <= budget
        assert read + PRUNED_ROWS + 4 * D > budget or screen.rank == D
    widths = [screen.width for screen in screens]
    assert widths == sorted(set(widths), reverse=True)


def test_a_screen_has_the_scores_of_the_low_rank_rows() -> None:
    bias = torch.randn(SIZE, generator=torch.Generator().manual_seed(2))
    head, everything = (HEAD[0], bias), torch.ones(SIZE)
    hidden = torch.randn(9, D, generator=torch.Generator().manual_seed(3))
    screens = list(screens_within(0.1, head, VOCABULARY, torch.eye(D), everything))
    assert len(screens) > 1
    for screen in screens:
        left, right = low_rank_factors(head, VOCABULARY, torch.eye(D), screen.rank)
        exact = torch.nn.functional.linear(hidden, left @ right, bias[VOCABULARY.pruned])
        # Eight bits are worth about 1 % of the logits' spread.
        assert float((screen.scores(hidden) - exact).std()) < 0.01 * float(exact.std())


# In calibration. 15 of 60 tokens are kept; the screen may read 90 % of the other rows' bytes.

PAIR = MarkovPair.random()
SMALL = Options(virtual=4, dynamic=2, recent=1, screen=0.9)


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths that fit into 45 pruned tokens."""
    monkeypatch.setattr("rdk_cuda.recipes.stages.screen._WIDTHS", (2, 4, 8, 16))


@cache
def _pruning(options: Options = SMALL, pair: MarkovPair = PAIR) -> Pruning:
    return Pruning(material(pair), PAIR.likeliest(), options)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_screen_joins_the_dynamic_tokens_where_it_helps(temperature: float) -> None:
    screening, without = _pruning(), _pruning(replace(SMALL, screen=0.0))
    rates = {
        name: [
            rate(one, one.method(name, temperature).drafter, temperature)
            for one in (without, screening)
        ]
        for name in (PRUNED, DYNAMIC, VIRTUAL, RECOMMENDED)
    }
    assert rates[PRUNED][0] == rates[PRUNED][1]
    assert rates[VIRTUAL][0] == rates[VIRTUAL][1]  # alone they have no screen
    assert rates[DYNAMIC][1] > rates[DYNAMIC][0] + 0.02
    assert rates[RECOMMENDED][1] >= rates[DYNAMIC][1]
    # The screen is chosen without virtual tokens; next to those it is worth less.
    assert rates[RECOMMENDED][1] > rates[RECOMMENDED][0] - 0.001
    method = screening.method(RECOMMENDED, temperature)
    assert re.search(r", \d+ screened tokens at rank [1-6]$", method.tuned), method.tuned
    assert "screened" not in without.method(RECOMMENDED, temperature).tuned


def test_where_the_screen_misleads_the_recommended_is_not_below_the_pruned() -> None:
    """A drafter for which the least likely pruned tokens are the likeliest."""
    weight, bias = PAIR.weight.clone(), PAIR.bias.clone()
    pruned = PAIR.likeliest().pruned
    weight[pruned] *= -1
    bias[pruned] = 4 - bias[pruned]
    pruning = _pruning(SMALL, replace(PAIR, weight=weight, bias=bias))
    for temperature in (*TEMPERATURES, 0.0):
        recommended = pruning.method(RECOMMENDED, temperature).drafter
        assert not list(screens_of(recommended.dynamic_tokens))
        assert rate(pruning, recommended, temperature) >= rate(pruning, pruning.plain, temperature)
