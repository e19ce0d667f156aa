import math

import numpy
import pytest

from forgetless.config.checks import check_number, check_one_of, check_seed, check_whole


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_what_is_no_whole_number_of_one_or_more_is_named(value):
    with pytest.raises(ValueError, match=f"steps is {value!r}; it must be a whole number of 1 or more"):
        check_whole("steps", value)


def test_what_is_none_of_the_words_is_named_with_them():
    check_one_of("policy", "balanced", ("reservoir", "balanced"))
    with pytest.raises(ValueError, match=r"policy is \['balanced'\]; it must be one of reservoir, balanced"):
        check_one_of("policy", ["balanced"], ("reservoir", "balanced"))


def test_numbers_of_numpy_are_numbers():
    check_whole("steps", numpy.int64(3))
    check_number("lr", numpy.float32(0.5), above=0)
    check_seed(numpy.int64(-3))


@pytest.mark.parametrize(
    ("value", "limits", "said"),
    [
        (0.0, {"above": 0}, "a finite number above 0"),
        (-0.5, {"least": 0}, "a finite number of 0 or more"),
        (math.nan, {}, "a finite number"),
        (math.inf, {"above": 0}, "a finite number above 0"),
        ("0.1", {}, "a finite number"),
        (True, {}, "a finite number"),
    ],
)
def test_what_is_no_number_within_its_limits_is_named(value, limits, said):
    with pytest.raises(ValueError, match=f"lr is {value!r}; it must be {said}$"):
        check_number("lr", value, **limits)


@pytest.mark.parametrize("value", [1.5, "0", False, None])
def test_a_seed_is_a_whole_number(value):
    with pytest.raises(ValueError, match=f"seed is {value!r}; it must be a whole number$"):
        check_seed(value)


@pytest.mark.parametrize("value", [2**64 - 1, -(2**62)])
def test_a_seed_is_one_that_torch_can_begin_from(value):
    with pytest.raises(ValueError, match=f"order is {value}; it must be between -2\\^62 and 2\\^62"):
        check_seed(value, "order")
