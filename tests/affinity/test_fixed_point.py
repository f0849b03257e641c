"""Masses as whole numbers of 2^-32: exact sums by largest remainders."""

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdk_cuda.affinity.fixed_point import (
    ONE,
    apportion,
    differences,
    running_sums,
    to_float32,
    to_float64,
)

masses_of_a_group = st.lists(
    st.floats(0, 1e6, allow_nan=False, allow_subnormal=False), min_size=1, max_size=30
)


def _flatten(groups):
    masses = torch.tensor([mass for group in groups for mass in group], dtype=torch.float64)
    sizes = torch.tensor([len(group) for group in groups])
    return masses, torch.arange(len(groups)).repeat_interleave(sizes)


@given(st.lists(masses_of_a_group, min_size=1, max_size=6))
def test_every_group_with_mass_sums_to_exactly_one(groups):
    masses, group = _flatten(groups)
    units = apportion(masses, group, len(groups))
    for i, members in enumerate(groups):
        assert int(units[group == i].sum()) == (ONE if sum(members) > 0 else 0)
    assert bool((units >= 0).all())


@given(masses_of_a_group)
def test_no_mass_is_off_by_a_unit_and_none_appears_from_nothing(members):
    masses, group = _flatten([members])
    units = apportion(masses, group, 1).tolist()
    total = sum(map(Fraction, members))
    for mass, unit in zip(members, units, strict=True):
        share = Fraction(mass) / total * ONE if total else Fraction(0)
        # 2^-18 of a unit is what float64 itself may be off by, 30 additions and a division.
        assert abs(unit - share) < 1 + Fraction(1, 2**18)
        assert mass > 0 or unit == 0


@given(st.lists(st.integers(0, 2**36), min_size=1, max_size=40))
def test_units_left_over_go_to_the_largest_remainders_lowest_index_first(members):
    # The last one fills up to 2^42, so shares are exact multiples of 2^-10 in float64.
    members = [*members, 2**42 - sum(members)]
    expected = [mass >> 10 for mass in members]
    by_remainder = sorted(range(len(members)), key=lambda i: (-(members[i] & 1023), i))
    for i in by_remainder[: ONE - sum(expected)]:
        expected[i] += 1
    masses, group = _flatten([members])
    assert apportion(masses, group, 1).tolist() == expected


def test_a_quarter_million_skewed_masses_in_mixed_groups_still_sum_exactly():
    masses = torch.rand(262_144, generator=torch.Generator().manual_seed(0)).double() ** 9
    group = torch.arange(262_144) % 3
    units = apportion(masses, group, 3)
    for i in range(3):
        alone, own = units[group == i], masses[group == i]
        assert int(alone.sum()) == ONE
        assert float((alone / ONE - own / own.sum()).abs().max()) < 1.001 / ONE
        assert torch.equal(alone, apportion(own, torch.zeros_like(alone), 1))


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, ONE), max_size=6), min_size=1, max_size=6))
def test_running_sums_start_anew_in_every_row_and_differences_undo_them(rows):
    units = torch.tensor([unit for row in rows for unit in row], dtype=torch.int64)
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    sums = running_sums(units, offsets)
    expected = [sum(row[: i + 1]) for row in rows for i in range(len(row))]
    assert sums.tolist() == expected
    assert torch.equal(differences(sums, offsets), units)


@given(st.integers(0, ONE))
def test_floats_are_the_integers_correctly_rounded(unit):
    units = torch.tensor([unit])
    assert Fraction(to_float64(units).item()) == Fraction(unit, ONE)
    nearest = torch.tensor([unit / ONE], dtype=torch.float64).float()
    assert torch.equal(to_float32(units), nearest)
