"""The soak itself, in small: what it draws, and what it notices."""

from __future__ import annotations

import pytest

from tests.tolerances import FALSE_ALARM

from .__main__ import Soak
from .cases import CASES

pytestmark = pytest.mark.night

TOKENS = 400_000


@pytest.fixture(scope="module")
def soak() -> Soak:
    soak = Soak(seed=0)
    soak.run(TOKENS)
    return soak


def test_right_cases_pass_and_a_shared_coin_is_caught(soak: Soak) -> None:
    """The other control needs more tokens."""
    assert soak.total >= TOKENS
    rows = soak.log()["cases"]
    assert all(row["as_it_should_be"] for row in rows[: len(CASES)])
    coin = rows[len(CASES)]
    assert coin["as_it_should_be"]
    assert coin["p_values"]["first"] > FALSE_ALARM  # each token by itself looks right


def test_frequencies_that_belong_to_other_tokens_are_noticed(soak: Soak) -> None:
    noticed = set()
    for index, case in enumerate(CASES):
        for name, _ in Soak.compared(case):
            kept = soak.counts[index][name]
            if (case.kind, name) == ("first-order", "drafted"):
                continue  # q is nearly uniform
            if kept.sum() < 20 * kept.numel():
                continue  # so few tokens are not enough
            noticed.add(name)
            soak.counts[index][name] = kept.roll(1)
            assert soak.row(index)["p_values"][name] < FALSE_ALARM, (case.name, name)
            soak.counts[index][name] = kept
    assert noticed == {"drafted", "first", "pairs", "length"}
