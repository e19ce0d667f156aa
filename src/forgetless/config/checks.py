"""Errors that name a setting, its value and what would be right. Imports no torch."""

from __future__ import annotations

import math
import sysconfig
import traceback
from collections.abc import Iterable
from numbers import Integral, Real
from pathlib import Path


def check_whole(name: str, value: object, least: int = 1) -> None:
    """An error unless ``value`` is a whole number of ``least`` or more, numpy's included."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of {least} or more")


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """An error unless ``value`` is one of these words."""
    if value not in (words := tuple(known)):
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(words)}")


def check_seed(value: object, name: str = "seed") -> None:
    """An error unless ``value`` is a whole number that torch can begin from, also with a little added to it."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{name} is {value!r}; it must be a whole number")
    if abs(int(value)) >= 2**62:
        raise ValueError(f"{name} is {value}; it must be between -2^62 and 2^62")


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Where in a user's own files an error came from: not in this package, nor in what is installed."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    others = [Path(__file__).parents[1], *(Path(sysconfig.get_path(kind)) for kind in kinds)]

    def is_own(frame: traceback.FrameSummary) -> bool:
        file = Path(frame.filename)
        return file.exists() and not any(file.is_relative_to(folder) for folder in others)

    return [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame)]


def blamed_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The same, or where what caused the error came from."""
    return own_frames(error) or (own_frames(error.__cause__) if error.__cause__ else [])


def check_number(
    name: str, value: object, *, above: float | None = None, least: float | None = None, most: float | None = None
) -> None:
    """An error unless ``value`` is a finite number above ``above``, or from ``least`` on, and not above ``most``."""
    if (
        isinstance(value, bool)
        or not isinstance(value, Real)
        or not math.isfinite(value)
        or (above is not None and float(value) <= above)
        or (least is not None and float(value) < least)
        or (most is not None and float(value) > most)
    ):
        limit = f" above {above:g}" if above is not None else f" of {least:g} or more" if least is not None else ""
        limit += f" and {most:g} or less" if most is not None else ""
        raise ValueError(f"{name} is {value!r}; it must be a finite number{limit}")
