"""Advance several runs in turns on one GPU, each with its own CUDA stream and memory.

Small batches leave most of a GPU idle. One thread feeds all runs. A run gets its turn when little of its work is still
queued on the GPU, or when all of it is done where the run must read its losses. Each run computes what it would alone.
An evaluation is one turn, and so is each epoch that GDumb trains at the end: the other runs wait for it.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from forgetless.config.tracebacks import blamed_frames
from forgetless.experiments.jobs import LANES
from forgetless.training.events import Ended, Event
from forgetless.training.loop import Run


@dataclass(frozen=True)
class Postponed:
    """The GPU ran out of memory: the run is dropped and starts again when another one has ended.

    A run that is alone starts again at once, and only once. By then torch's cache of earlier runs has been released,
    which torch cannot do while it captures a graph.
    """


@dataclass(frozen=True)
class Crash:
    """A run ended with an error; the others continue."""

    error: Exception
    trace: str
    place: str = ""  # file and line in the user's code, if the error came from there

    @staticmethod
    def from_error(error: Exception) -> Crash:
        """Return the error with its trace as text. Frames are dropped: they would keep the run's network alive."""
        trace = "".join(traceback.format_exception(error))
        frames = blamed_frames(error)
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        chain: list[BaseException] = [error]
        for link in chain:
            link.__traceback__ = None
            chain += [other for other in (link.__cause__, link.__context__) if other is not None and other not in chain]
        return Crash(error, trace, place)


Start = Callable[[], Run | None]
Turn = Event | Postponed | Crash


def interleave(starts: Sequence[Start], lanes: int = LANES, *, isolate: bool = False) -> Generator[tuple[int, Turn]]:
    """Start runs, advance them in turns, and yield (number of the run, its event).

    Each of ``starts`` starts one run; one that returns ``None`` is left out. What is appended meanwhile starts next. At
    most ``lanes`` runs are active, and no more than fitted once memory has run out; a postponed run starts again. With
    ``isolate``, a run that raises an error ends with ``Crash``. Otherwise the error is raised here.
    """
    active: dict[int, Run] = {}
    waiting = deque(range(len(starts)))
    urgent: deque[int] = deque()  # postponed runs, and starts that were appended
    retried: set[int] = set()  # runs that were alone when memory ran out
    known, device = len(starts), torch.device("cpu")  # the device of the latest run

    def advance(number: int) -> Turn | None:
        """Start a run, or return its next event; nothing here may keep a run that is over alive."""
        nonlocal lanes, device
        try:
            if number in active:
                return next(active[number])
            if (run := starts[number]()) is not None:
                active[number], device = run, run.engine.device
            return None
        except Exception as error:  # a run may hold a user's method, and must not stop the others
            had_started = active.pop(number, None) is not None
            if had_started and isinstance(error, StopIteration):  # the reader of its events has closed it
                return None
            if isinstance(error, torch.cuda.OutOfMemoryError) and (active or number not in retried):
                if active:
                    lanes = len(active)
                else:
                    retried.add(number)
                urgent.append(number)
                return Postponed()
            if not isolate:
                raise
            return Crash.from_error(error)

    while active or waiting or urgent or known < len(starts):
        urgent.extend(range(known, len(starts)))
        known = len(starts)
        if (urgent or waiting) and len(active) < lanes:
            _release_memory(device)
            turns = [(urgent or waiting).popleft()]
        else:
            turns = [number for number, run in active.items() if run.engine.ready()]
        for number in turns:
            event = advance(number)
            if isinstance(event, Ended):
                del active[number]
            if event is not None:
                yield number, event
            if isinstance(event, Postponed):
                _release_memory(device, now=True)
            del event  # it may hold the network of a run that is over
        if not turns:
            time.sleep(2e-5)


def _release_memory(device: torch.device, *, now: bool = False) -> None:
    """Return the memory that ended runs left in torch's cache to the GPU: always, or if little is free."""
    wanted = now and torch.cuda.is_initialized()
    if device.type == "cuda" and not now:  # all runs wait for it, so not every time
        free, total = torch.cuda.mem_get_info(device)
        wanted = free < total / 4
    if wanted:
        gc.collect()
        torch.cuda.empty_cache()
