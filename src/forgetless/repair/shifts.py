"""Detect where the data shifts, from the changes of the parameters alone.

All layers change more when the task switches (Zhao et al. 2023, Sec. 4.2). ``boundaries`` is the definition; a
``Detector`` applies it to one window of training steps at a time. ``benchmarks/boundaries.py`` measures the defaults.
"""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, final

SETTLE = 3  # windows that a task needs before the next shift can be detected
JUMP = 2.0  # times the largest change of the recent windows
FLOOR = 0.3  # times the largest change of the whole task


def boundaries(
    rows: Sequence[Sequence[float]], settle: int = SETTLE, jump: float = JUMP, floor: float = FLOOR
) -> list[int]:
    """Return the windows, counted from 0, in which a new task begins.

    A window begins a new task when both hold for the median tensor: its change is more than ``jump`` times the largest
    of the last ``settle`` windows, and more than ``floor`` times the largest of the whole task. The second condition
    excludes the noise of a converged network. Windows in which nothing moved, or something is not finite, are skipped.
    Tensors that did not move in a window, such as an unused head or a frozen layer, do not vote.
    ``rows[w]`` holds the change of each tensor over window w.
    """
    detector = Detector(settle, jump, floor)
    return [window for window, row in enumerate(rows) if detector.see(row)]


@final
class Detector:
    """``boundaries`` for one window at a time: holds the recent windows and the largest changes of the task."""

    def __init__(self, settle: int = SETTLE, jump: float = JUMP, floor: float = FLOOR) -> None:
        self._jump, self._floor = jump, floor
        self._recent: deque[list[float]] = deque(maxlen=settle)
        self._highest: list[float] = []

    def see(self, row: Sequence[float]) -> bool:
        """Return whether this window begins a new task."""
        if not any(row) or not all(map(math.isfinite, row)):
            return False
        begins = len(self._recent) == self._recent.maxlen and self._is_shift(row)
        if begins:
            self.restart()
        self._recent.append(list(row))
        self._highest = [max(pair) for pair in zip(row, self._highest or row, strict=True)]
        return begins

    def restart(self) -> None:
        """Forget all windows, at a shift or after a finetuning."""
        self._recent.clear()
        self._highest = []

    def state_dict(self) -> dict[str, Any]:
        return {"recent": [list(row) for row in self._recent], "highest": list(self._highest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restart()
        self._recent.extend(list(row) for row in state["recent"])
        self._highest = list(state["highest"])

    def _is_shift(self, row: Sequence[float]) -> bool:
        moved = [i for i, change in enumerate(row) if change > 0]
        over_recent = median(_ratio(row[i], max(past[i] for past in self._recent)) for i in moved)
        over_highest = median(_ratio(row[i], self._highest[i]) for i in moved)
        return over_recent > self._jump and over_highest > self._floor


def _ratio(now: float, past: float) -> float:
    return now / past if past > 0 else math.inf
