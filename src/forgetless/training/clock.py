"""Measure how long each phase of a run takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PHASES = ("train", "finetune", "evaluate", "total")


class Clock:
    """The seconds of each phase so far. A phase that begins inside another one pauses it; ``total`` never pauses."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._phase: str | None = None
        self._since = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as the phase ``name``."""
        outer = self._phase
        self._switch(name)
        try:
            yield
        finally:
            self._switch(outer)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase up to now, including the phase under way."""
        self._switch(self._phase)
        return dict(self._seconds)

    def resume(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of the earlier part of a run."""
        for name, value in seconds.items():
            self._seconds[name] += value

    def _switch(self, phase: str | None) -> None:
        now = time.perf_counter()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._seconds["total"] += now - self._since
        self._phase, self._since = phase, now
