"""Errors that name a setting, its value and what would be right. Imports no torch."""

from __future__ import annotations

import math
from numbers import Integral, Real


def check_whole(name: str, value: object) -> None:
    """An error unless ``value`` is a whole number of 1 or more, numpy's included."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of 1 or more")


def check_seed(value: object) -> None:
    """An error unless ``value`` is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"seed is {value!r}; it must be a whole number")


def check_number(name: str, value: object, *, above: float | None = None, least: float | None = None) -> None:
    """An error unless ``value`` is a finite number above ``above``, or of ``least`` or more."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not math.isfinite(value)
        or (above is not None and float(value) <= above)
        or (least is not None and float(value) < least)
    ):
        limit = f" above {above:g}" if above is not None else f" of {least:g} or more" if least is not None else ""
        raise ValueError(f"{name} is {value!r}; it must be a finite number{limit}")
