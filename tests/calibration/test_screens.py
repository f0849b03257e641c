"""Screens within a budget of bytes, and what calibration makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
import torch

from rdk_cuda import ScreenedTokens, Vocabulary
from rdk_cuda.calibration import Options, low_rank_factors, screens_within
from rdk_cuda.drafter import PrunedDrafter
from rdk_cuda.dynamic_tokens import screens_of
from rdk_cuda.recipes.stages.pruning import DYNAMIC, PRUNED, RECOMMENDED, VIRTUAL, Method, Pruning
from rdk_cuda.recipes.timing import HeadCost

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
        read = screen.bytes + batch * (screen.bytes_each + screen.width * ROW)
        another_rank = PRUNED_ROWS + (4 * D if screen.second_rank is None else 0)
        most = (screen.second_rank or D + 1) - 1
        assert read <= budget
        assert read + another_rank > budget or screen.rank == most
    sizes = [(screen.width, screen.candidates, screen.second_rank) for screen in screens]
    assert len(set(sizes)) == len(sizes)
    widths = [screen.width for screen in screens]
    assert widths == sorted(widths, reverse=True)
    # Where a single look reaches the rank of a second one, there is none.
    looks = {screen.second_rank for screen in screens}
    assert looks == ({None, 13, 26} if share == 0.05 else {None, 26} if share < 0.3 else {None})
    assert all(s.candidates in (None, 4 * s.width, 8 * s.width) for s in screens)


def test_a_screen_has_the_scores_of_the_low_rank_rows() -> None:
    bias = torch.randn(SIZE, generator=torch.Generator().manual_seed(2))
    head, everything = (HEAD[0], bias), torch.ones(SIZE)
    hidden = torch.randn(9, D, generator=torch.Generator().manual_seed(3))
    screens = list(screens_within(0.05, head, VOCABULARY, torch.eye(D), everything))
    assert {screen.second_rank for screen in screens} == {None, 13}
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
    monkeypatch.setattr("rdk_cuda.recipes.stages.screen._MOST_CANDIDATES", 32)


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
    assert re.search(
        r", \d+ screened tokens at rank [1-6](, and at [1-6] for .*)?$", method.tuned
    ), method.tuned
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


def test_what_a_second_look_reads_is_counted_in_the_cost() -> None:
    screen = next(s for s in _screens(0.05) if s.candidates == 32)
    plain = PrunedDrafter.plain(HEAD, VOCABULARY)
    method = Method(DYNAMIC, 0.1, replace(plain, dynamic_tokens=screen))
    cost = HeadCost.of(method.drafter, 5.0, 4)
    assert cost.screen_bytes_each == screen.bytes_each == 2 * 32 * 26
    assert plain.screen_bytes_each == 0
