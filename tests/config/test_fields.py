import math
import re
from dataclasses import dataclass

import numpy
import pytest

from forgetless.config.fields import SEED, Checked, Setting, check_value, setting, settings_of


@dataclass(frozen=True, kw_only=True)
class Example(Checked):
    lr: float = setting(0.1, "Learning rate.", above=0)
    steps: int | None = setting(None, "Steps.", least=1)
    groups: str | tuple[str, ...] = setting("auto", "Groups.", option="groups_to_repair")
    hidden: bool = setting(False, "Not recorded.", recorded="never")


def test_settings_hold_what_their_fields_declare():
    declared = settings_of(Example)
    assert list(declared) == ["lr", "steps", "groups", "hidden"]
    assert declared["lr"] == Setting("lr", float, 0.1, help="Learning rate.", above=0, option="lr")
    assert declared["steps"].optional
    assert declared["groups"].takes_list
    assert declared["groups"].option == "groups_to_repair"
    assert declared["hidden"].recorded == "never"
    assert settings_of(int) == {}


def test_values_are_converted_to_their_types():
    example = Example(lr=numpy.float32(0.5), steps=numpy.int64(3), groups=["fc1", "fc2"])
    assert example == Example(lr=0.5, steps=3, groups=("fc1", "fc2"))
    assert (type(example.lr), type(example.steps), type(example.groups)) == (float, int, tuple)
    assert isinstance(Example(lr=1).lr, float)


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match=f"steps is {value!r}; it must be a whole number of 1 or more"):
        check_value("steps", value, int, least=1)


@pytest.mark.parametrize(
    ("value", "rules", "wanted"),
    [
        (0.0, {"above": 0}, "a finite number above 0"),
        (-0.5, {"least": 0}, "a finite number of 0 or more"),
        (1.5, {"least": 0, "most": 1}, "a finite number of 0 or more and 1 or less"),
        (math.nan, {}, "a finite number"),
        (math.inf, {"above": 0}, "a finite number above 0"),
        ("0.1", {}, "a finite number"),
        (True, {}, "a finite number"),
    ],
)
def test_what_is_no_number_in_range_is_refused(value, rules, wanted):
    with pytest.raises(ValueError, match=f"lr is {value!r}; it must be {wanted}$"):
        check_value("lr", value, float, **rules)


def test_a_word_must_be_a_choice():
    assert check_value("policy", "balanced", str, choices=("reservoir", "balanced")) == "balanced"
    for value in (["balanced"], "ring"):
        message = f"policy is {value!r}; it must be one of reservoir, balanced"
        with pytest.raises(ValueError, match=re.escape(message)):
            check_value("policy", value, str, choices=("reservoir", "balanced"))


@pytest.mark.parametrize("value", [1.5, "0", False, None, 2**64 - 1, -(2**62)])
def test_a_seed_is_a_whole_number_that_torch_takes(value):
    assert check_value("seed", numpy.int64(-3), int, **SEED) == -3
    with pytest.raises(ValueError, match=rf"order is {value}|'0'; it must be a whole number between -2\^62 and 2\^62"):
        check_value("order", value, int, **SEED)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("lr", "1e-3", 0.001), ("steps", "3", 3), ("groups", "fc1,fc2", ("fc1", "fc2")), ("groups", "all", "all")],
)
def test_a_word_of_the_command_line_is_parsed(name, text, value):
    assert settings_of(Example)[name].parse(text) == value


def test_a_word_that_cannot_be_parsed_is_refused():
    with pytest.raises(ValueError, match="lr is 'fast'; it must be a finite number above 0"):
        settings_of(Example)["lr"].parse("fast")
