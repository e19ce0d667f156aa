"""What the commands print: tables, progress and remarks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from forgetless.experiments import record
from forgetless.experiments.jobs import RunStarted
from forgetless.experiments.record import Record
from forgetless.experiments.sweep import RunFailed, SweepEvent
from forgetless.reports import rows

stdout = Console(markup=False, emoji=False, highlight=False)  # folder names may look like markup
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False)
BAR = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


def print_line(text: str) -> None:
    """Print text without breaking its lines, so that file names stay in one piece."""
    stdout.print(text, soft_wrap=True)


def print_remark(text: str) -> None:
    """Print text to stderr without breaking its lines."""
    stderr.print(text, soft_wrap=True)


def print_skipped(problems: Iterable[str]) -> None:
    """Name the records that are left out of a table."""
    for problem in problems:
        print_remark(f"skipped: {problem}")


def agreeing(records: list[Record]) -> list[Record]:
    """Return the records that can be averaged, and name the others."""
    members, problems = record.agreeing(records)
    print_skipped(problems)
    return members


def print_table(headings: Iterable[str], lines: Iterable[Iterable[str]], *, numbers: bool = False) -> None:
    """Print a table. With ``numbers``, all columns but the first are aligned to the right."""
    table = Table(box=None)
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if numbers and position else "left", overflow="fold")
    for line in lines:
        table.add_row(*line)
    stdout.print(table)


def print_rows(records: list[Record]) -> None:
    """Print a table with one row per method."""
    print_table(rows.HEADINGS, map(rows.cells, rows.table_rows(records)), numbers=True)


def print_by_stream(records: list[Record]) -> None:
    """Print a table for each stream."""
    for stream, members in rows.by_stream(records).items():
        stdout.print(stream)
        print_rows(members)
    print_mixed_versions(records)


def print_mixed_versions(records: list[Record]) -> None:
    """Name the rows whose records come from several versions: their means may mix different things."""
    for row in rows.table_rows(records):
        if len(versions := sorted({member.versions.get("forgetless", "unknown") for member in row.records})) > 1:
            print_remark(f"{row.label}: its records come from the versions {', '.join(versions)}")


@final
class SweepProgress(Progress):
    """A progress bar for many runs, which disappears when it ends. Failures are printed at once."""

    def __init__(self, total: int) -> None:
        super().__init__(*BAR, console=stderr, transient=True)
        self.done = self.existing = self.failed = 0
        self._left, self._bar = total, self.add_task("starting", total=total)
        self._running: set[str] = set()

    def __str__(self) -> str:
        return f"{self.done} done, {self.existing} finished earlier, {self.failed} failed"

    def show(self, event: SweepEvent) -> None:
        """Show an event of a sweep. Runs that ended earlier do not count towards the speed."""
        settings = event.settings
        if isinstance(event, RunStarted):
            self._running.add(settings.id)
        else:
            self._running.discard(settings.id)
            if isinstance(event, RunFailed):
                self.failed += 1
                run = f"{settings.label} with {settings.network}, lr {settings.lr}, seed {settings.seed}"
                hint = " (in an earlier call; --retry repeats it)" if event.earlier else ""
                print_remark(f"failed: {run} ({settings.id}): {event.error}{hint}")
            elif event.earlier:
                self.existing += 1
            else:
                self.done += 1
            self._left -= event.earlier
            self.update(self._bar, total=self._left, advance=not event.earlier)
        self.update(self._bar, description=f"{self}, {len(self._running)} running")
