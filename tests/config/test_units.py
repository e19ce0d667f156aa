"""Numbers are written in readable units."""

import pytest

from forgetless.config.units import duration, quantity, si_prefix


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (5, "5"),
        (1300, "1.3 k"),
        (6.58e8, "658 M"),
        (1.67e16, "16.7 P"),
        (999_600, "1 M"),
        (0.02, "0.02"),
        (1e18, "1 E"),
    ],
)
def test_large_numbers_have_a_unit_prefix(value, text):
    assert si_prefix(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(1.48e15, "FLOPs", "1.48 PFLOPs"), (34e6, "B", "34 MB"), (12, "FLOPs", "12 FLOPs"), (0, "B", "0 B")],
)
def test_a_quantity_has_its_unit(value, unit, text):
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.04 s"),
        (3.42, "3.4 s"),
        (9.97, "10 s"),
        (34.2, "34 s"),
        (59.6, "1 min"),
        (130, "2 min 10 s"),
        (720, "12 min"),
        (11_100, "3 h 5 min"),
        (3_600, "1 h"),
        (187_300, "2 d 4 h"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds, text):
    assert duration(seconds) == text
