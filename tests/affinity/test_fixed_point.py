"""Masses as whole numbers of 2^-32: exact sums by largest remainders."""

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from rdk_cuda.affinity.fixed_point import ONE, apportion, to_float32, to_float64

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


@given(st.integers(0, ONE))
def test_floats_are_the_integers_correctly_rounded(unit):
    units = torch.tensor([unit])
    assert Fraction(to_float64(units).item()) == Fraction(unit, ONE)
    nearest = torch.tensor([unit / ONE], dtype=torch.float64).float()
    assert torch.equal(to_float32(units), nearest)
