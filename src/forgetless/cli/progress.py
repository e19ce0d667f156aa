"""How far a run or a sweep is: one line on a terminal; elsewhere a line per task, or per run that ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from forgetless.cli.output import print_error, print_remark, remarks
from forgetless.config.units import duration
from forgetless.experiments import record
from forgetless.experiments.jobs import Planned, RunDone, RunFailed, RunStarted, SweepEvent
from forgetless.experiments.labels import labels
from forgetless.experiments.settings import Settings

NAMED = 10  # runs that the message of a failure names


class ProgressLine(Progress):
    """A line with a bar and the remaining time. It exists only on a terminal and disappears when it ends."""

    def __init__(self, *, quiet: bool = False) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[eta]}"),
        )
        hidden = quiet or remarks.quiet or not remarks.is_terminal
        super().__init__(*columns, console=remarks, transient=True, disable=hidden)


def remaining_time(began: float, done: int, left: int) -> str:
    """Return "ETA 12 min" from the units of work done since ``began``; empty before the first and after the last."""
    return f"ETA {duration((time.monotonic() - began) / done * left)}" if done > 0 and left > 0 else ""


@final
class SweepProgress:
    """Shows the events of a sweep. Equal failures are reported together when it ends."""

    def __init__(self, total: int, out: Path, label: Callable[[Settings], str]) -> None:
        self.done = self.existing = self.failed = 0
        self._total, self._out, self._label = total, out, label
        self._began, self._ended = time.monotonic(), 0  # runs that ended in this call
        self._running: set[str] = set()
        self._failures: dict[str, list[Settings]] = {}  # by their error, in which "<id>" stands for the id of each
        self._line = ProgressLine()
        self._bar = self._line.add_task("starting", total=total, eta="")

    def __str__(self) -> str:
        return f"{self.done} done, {self.existing} finished earlier, {self.failed} failed"

    def __enter__(self) -> SweepProgress:
        self._line.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._line.stop()
        for message, runs in self._failures.items():
            text = message.replace("<id>", runs[0].id) if len(runs) == 1 else message
            named = "; ".join(f"{self._label(settings)} ({settings.id})" for settings in runs[:NAMED])
            more = f"; … and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
            count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
            print_error(f"{count} failed: {text}\n  {named}{more}")

    def show(self, event: SweepEvent) -> None:
        """Show an event. Runs that ended earlier do not count towards the speed."""
        settings = event.settings
        if isinstance(event, RunStarted):
            self._running.add(settings.id)
            if event.step:
                print_remark(f"{self._label(settings)}: resuming at task {event.task}, step {event.step:,}")
        else:
            self._running.discard(settings.id)
            outcome = self._count(event)
            position = self.done + self.existing + self.failed
            eta = remaining_time(self._began, self._ended, self._total - position)
            self._line.update(self._bar, completed=position, eta=eta)
            if not event.earlier and not remarks.is_terminal:
                count = f"{position:>{len(str(self._total))}}/{self._total}"
                print_remark(f"{count}  {self._label(settings)}: {outcome}{f' ({eta})' if eta else ''}")
        failed = f", {self.failed} failed" if self.failed else ""
        self._line.update(self._bar, description=f"{len(self._running)} running{failed}")

    def _count(self, event: RunDone | RunFailed) -> str:
        """Count a run that ended, and return how it ended."""
        self._ended += not event.earlier
        if isinstance(event, RunFailed):
            self.failed += 1
            hint = " (in an earlier call; --retry repeats it)" if event.earlier else ""
            runs = self._failures.setdefault(event.error.replace(event.settings.id, "<id>") + hint, [])
            runs.append(event.settings)
            return f"failed: {event.error}" if len(runs) == 1 else "failed, like a run before"
        if event.earlier:
            self.existing += 1
            return "finished earlier"
        self.done += 1
        finished = record.find(self._out, event.settings)
        return f"{finished.accuracy:.1f} % in {duration(finished.seconds['total'])}" if finished else "done"


def show_sweep(runs: Sequence[Planned], out: Path, events: Iterable[SweepEvent]) -> SweepProgress:
    """Show the events of a sweep of these runs, and return the progress with its counts."""
    names = labels([run.settings for run in runs])
    with SweepProgress(len(runs), out, lambda settings: names[settings.id]) as progress:
        for event in events:
            progress.show(event)
    return progress
