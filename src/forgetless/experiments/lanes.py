"""Several runs in turns on one GPU, each with its own CUDA stream and memory: small batches leave most of it idle.

One thread feeds all of them. A run is given its turn when little of its work is still queued on the GPU, and where it
has to read the GPU's losses, when that work is done; each computes what it would alone. An evaluation
is one turn, for which the others wait, and so is each epoch that GDumb trains at the end.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from forgetless.config.checks import blamed_frames, check_whole
from forgetless.training.events import Ended, Event, Stepped
from forgetless.training.loop import Run

MOST = 16  # lanes tried when the number is left open
GAIN = 1.05  # more lanes must be faster by this much, all together
WINDOW = 1.5  # seconds over which a number of lanes is judged
SETTLED = 60  # steps after which a new run's graphs are captured


@dataclass(frozen=True)
class Postponed:
    """The GPU's memory ran out: the run is given up, and begins again when another has ended.

    Alone it begins again at once, and only once: what runs before have left in torch's cache is given back to the GPU
    by then, which torch cannot do while a graph is captured.
    """


@dataclass(frozen=True)
class Failed:
    """A run ended with an error; the others go on."""

    error: Exception
    trace: str
    place: str = ""  # in a user's own file, if it came from there

    @staticmethod
    def of(error: Exception) -> Failed:
        """The error with its trace as text: the frames would keep the run's network and graphs alive."""
        trace = "".join(traceback.format_exception(error))
        own = blamed_frames(error)
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        chain: list[BaseException] = [error]
        for one in chain:
            one.__traceback__ = None
            chain += [other for other in (one.__cause__, one.__context__) if other is not None and other not in chain]
        return Failed(error, trace, place)


def interleave(
    starts: Sequence[Callable[[], Run | None]], lanes: int | None = None, *, isolate: bool = False
) -> Generator[tuple[int, Event | Postponed | Failed]]:
    """Start runs and carry them forward, ``lanes`` at a time; gives (number of the run, its event) as they come.

    ``starts`` may grow meanwhile: what is put at its end is started next. A start is called again after ``Postponed``;
    one that gives None is left out. A run that whoever reads its events has closed is over, without a further event.
    ``lanes=None``: on a GPU 1, 2, 4, … as long as that is faster and memory is left, elsewhere one after the other.
    ``isolate``: a run that raises an error ends with ``Failed``; otherwise the error is raised here.
    """
    if lanes is not None:
        check_whole("lanes", lanes)
    width = _Width(lanes)
    active: dict[int, Run] = {}
    first: deque[int] = deque()  # those to begin again, and those that were added
    waiting = deque(range(len(starts)))
    known = len(starts)
    alone: set[int] = set()  # those for which memory ran out while no other was there

    def turn(number: int, start: Callable[[], Run | None] | None = None) -> Event | Postponed | Failed | None:
        """Begin a run, or carry one forward; nothing here keeps a run that is over."""
        try:
            if start is None:
                return next(active[number])
            if (begun := start()) is not None:
                active[number] = begun
                width.started(number, begun.engine.device)
            return None
        except Exception as error:
            had_begun = active.pop(number, None) is not None
            if had_begun and isinstance(error, StopIteration):  # whoever reads its events has closed it
                width.ended(number)
                return None
            if isinstance(error, torch.cuda.OutOfMemoryError) and (active or number not in alone):
                if active:
                    width.narrow(len(active))
                else:
                    alone.add(number)
                first.append(number)
                return Postponed()
            if not isolate:
                raise
            return Failed.of(error)

    while waiting or first or active or known < len(starts):
        first.extend(range(known, len(starts)))
        known = len(starts)
        while (waiting or first) and len(active) < width.now:
            _make_room(width.device)
            number = (first or waiting).popleft()
            event = turn(number, starts[number])
            if event is not None:
                yield number, event
            if isinstance(event, Postponed):
                _make_room(width.device, now=True)
        turned = False
        for number in list(active):
            if not active[number].engine.ready():
                continue
            turned = True
            event = turn(number)
            if event is None:
                continue
            width.saw(number, event)
            if isinstance(event, Ended | Postponed | Failed):
                active.pop(number, None)
                width.ended(number)
            yield number, event
            if isinstance(event, Postponed):
                _make_room(width.device, now=True)
        if not turned:
            time.sleep(2e-5)


def _make_room(device: torch.device, *, now: bool = False) -> None:
    """Give memory that runs before have left in the cache back to the GPU: each had a stream and a pool of its own."""
    wanted = now and torch.cuda.is_initialized()
    if device.type == "cuda" and not now:  # not each time: all runs wait for it
        free, total = torch.cuda.mem_get_info(device)
        wanted = free < total / 4
    if wanted:
        gc.collect()
        torch.cuda.empty_cache()


class _Width:
    """How many lanes: those given, or found by trying."""

    def __init__(self, given: int | None) -> None:
        self.now = given or 1
        self._open = given is None
        self._best = 0.0  # events of progress a second, of all runs together
        self._since: float | None = None
        self._events = 0
        self._unsettled: set[int] = set()
        self._running: set[int] = set()
        self.device = torch.device("cpu")  # of the last run that was started

    def started(self, number: int, device: torch.device) -> None:
        self.device = device
        self._running.add(number)
        self._open = self._open and device.type == "cuda"
        self._since = None
        self._unsettled.add(number)

    def ended(self, number: int) -> None:
        self._since = None
        self._running.discard(number)
        self._unsettled.discard(number)

    def narrow(self, lanes: int) -> None:
        """As many as fit."""
        self.now, self._open = lanes, False

    def saw(self, number: int, event: Event | Postponed | Failed) -> None:
        """Count; after a while with this many lanes take twice as many, or go back to as many as were faster."""
        if not self._open or not isinstance(event, Stepped):
            return
        if event.step >= SETTLED:
            self._unsettled.discard(number)
        if self._unsettled or len(self._running) < self.now:  # so many are not there to be judged
            return
        now = time.perf_counter()
        if self._since is None:
            self._since, self._events = now, 0
            return
        self._events += 1
        if now - self._since < WINDOW:
            return
        speed = self._events / (now - self._since)
        if speed < GAIN * self._best:
            self.now //= 2
            self._open = False
            return
        self._best, self._since = speed, None
        free, total = torch.cuda.mem_get_info(self.device)
        if 2 * self.now > MOST or free < 1.2 * (total - free):  # twice the lanes take at most twice the memory
            self._open = False
            return
        self.now *= 2
