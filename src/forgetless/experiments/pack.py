"""Train many runs in one process: side by side on a GPU, with shared streams and shared trainings."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

from forgetless.compute.engine import find_device
from forgetless.data.stream import Stream
from forgetless.experiments import checkpoint, record
from forgetless.experiments.build import build_stream, stream_key
from forgetless.experiments.checkpoint import CheckpointedRun, Stop, Stopped, describe
from forgetless.experiments.finished import find_current
from forgetless.experiments.jobs import LANES
from forgetless.experiments.lanes import Crash, Postponed, interleave
from forgetless.experiments.record import Record
from forgetless.experiments.run import finish
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import Schedule, check_folder
from forgetless.training.events import Ended, Event, Trained
from forgetless.training.loop import Run
from forgetless.training.plain import copied
from forgetless.training.state import fits

PATIENCE = 20.0  # seconds that runs get to reach a step with a state, once they are asked to stop

Streams = dict[tuple[object, ...], Stream]  # by ``stream_key``, on the device of their runs


def run_lanes(
    runs: Sequence[Settings],
    lanes: int | None = None,
    out: Path | str | None = None,
    sources: Mapping[str, Mapping[str, str]] | None = None,
    streams: Streams | None = None,
    on_start: Callable[[Settings], None] = lambda settings: None,
    *,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
) -> Iterator[tuple[Settings, Record | Crash]]:
    """Train runs on one GPU or CPU, and yield the settings of each with its record, or with the error that ended it.

    Runs with a record in ``out`` are not trained again. Runs that differ only in FPF share one training: each resumes
    from its end, as it would alone. By default 8 ``lanes`` train side by side on a GPU, and 1 on a CPU. ``sources`` are
    by the id of a run. Streams that are read here are added to ``streams``, for the next call. ``schedule`` and
    ``stop`` are those of ``run``.
    """
    if out is not None:
        out = record.folder(out)
        check_folder(out)
    pack = _Pack(out, sources or {}, {} if streams is None else streams, on_start, schedule, stop or Stop())
    trainings: dict[str, list[Settings]] = {}
    for settings in {settings.id: settings for settings in runs}.values():
        try:
            result: Record | Crash | None = None if out is None else find_current(out, settings)
        except ValueError as error:  # the record is damaged
            result = Crash.from_error(error)
        if result is None:
            trainings.setdefault(settings.training_id, []).append(settings)
        else:
            yield settings, result
    for members in trainings.values():
        pack.plan_training(members)
    on_gpu = any(settings.device.startswith("cuda") for settings in runs)
    for number, event in interleave(pack.starts, lanes or (LANES if on_gpu else 1), isolate=True):
        member = pack.members[number]
        if (outcome := pack.observe(member, event)) is not None:
            yield member.settings, outcome
        if pack.stopped():
            break
    if pack.stop.since is not None:
        pack.save_shared()
        raise Stopped


@dataclass
class _Member:
    """A run of a pack."""

    settings: Settings
    state: dict[str, Any] | None = None  # the end of the shared training that this run resumes from
    sharing: list[Settings] = field(default_factory=list)  # runs that wait for the end of this run's training
    active: CheckpointedRun | None = None  # while the run is under way


@final
@dataclass
class _Pack:
    """The runs of ``run_lanes``: starts each of them, and turns its events into checkpoints and a record."""

    out: Path | None
    sources: Mapping[str, Mapping[str, str]]
    streams: Streams
    on_start: Callable[[Settings], None]
    schedule: Schedule | None
    stop: Stop
    members: list[_Member] = field(default_factory=list)
    starts: list[Callable[[], Run | None]] = field(default_factory=list)  # of the members, in the same order

    def plan_training(self, sharing: list[Settings]) -> None:
        """Plan the run whose training the others share: one with FPF, because only such a run emits ``Trained``."""
        first = next((settings for settings in sharing if settings.repair == "fpf"), sharing[0])
        self._plan(_Member(first, sharing=[settings for settings in sharing if settings is not first]))

    def observe(self, member: _Member, event: Event | Postponed | Crash) -> Record | Crash | None:
        """Write checkpoints, share the training, and return the outcome of a run if this event decides it."""
        active, over = member.active, True
        outcome: Record | Crash | None = None
        try:
            if isinstance(event, Crash):
                outcome = event
            elif active is not None and isinstance(event, Ended):
                outcome = finish(active, event.result, self.out)
            elif active is not None and isinstance(event, Trained):
                self._share(member, active.run)
                over = False
            elif active is not None and not isinstance(event, Postponed):
                over = active.observe(event, self.stop)
        except Exception as error:  # a full disk, or a user's method: the other runs continue
            outcome = Crash.from_error(error)
        if over:
            if active is not None:
                active.run.close()
            member.active = None
            if not isinstance(event, Postponed):
                member.state = None
                if member.sharing:  # the training left no state to share
                    self.plan_training(member.sharing)
        return outcome

    def stopped(self) -> bool:
        """Return whether a stop was asked for, and every run has its checkpoint or has run out of time."""
        since = self.stop.since
        under_way = any(member.active is not None for member in self.members)
        return since is not None and (not under_way or time.monotonic() - since > PATIENCE)

    def save_shared(self) -> None:
        """Write the end of a shared training as the checkpoint of each run that did not start yet."""
        if not isinstance(self.out, Path):  # an object store holds no checkpoints
            return
        for member in self.members:
            settings, state = member.settings, member.state
            if state is not None and member.active is None:
                about = describe(settings, self.streams[stream_key(settings)], self.sources.get(settings.id, {}))
                try:
                    checkpoint.save(state, about, checkpoint.path(self.out, settings))
                except OSError as error:
                    warnings.warn(f"no checkpoint was written: {error}", stacklevel=2)

    def _plan(self, member: _Member) -> None:
        self.members.append(member)
        self.starts.append(partial(self._start, member))

    def _start(self, member: _Member) -> Run | None:
        """Return the started run of a member; ``None`` after a request to stop."""
        if self.stop.since is not None:
            return None
        settings = member.settings
        self.on_start(settings)
        key = stream_key(settings)
        if key not in self.streams:
            stream, device = build_stream(settings), find_device(settings.device)
            self.streams[key] = stream.to(device, images=fits(stream, device))
        how = {"sources": self.sources.get(settings.id, {}), "state": copied(member.state)}
        member.active = CheckpointedRun(settings, self.streams[key], self.out, self.schedule, **how)
        return member.active.run

    def _share(self, member: _Member, run: Run) -> None:
        """Plan the runs that share this training, from its state at the end."""
        if member.sharing:
            with suppress(RuntimeError, MemoryError):  # without memory for a copy, the next of them trains again
                member.state = copied(run.state_dict(), "cpu")  # the CPU copy is safe from the GPU's streams
                for settings in member.sharing:
                    self._plan(_Member(settings, member.state))
                member.sharing = []
