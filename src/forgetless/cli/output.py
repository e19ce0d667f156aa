"""What the commands print: tables, progress and remarks."""

from __future__ import annotations

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


def print_line(text: str) -> None:
    """Print text without breaking its lines, so that file names stay in one piece."""
    stdout.print(text, soft_wrap=True)


def print_remark(text: str) -> None:
    """Print text to stderr without breaking its lines."""
    stderr.print(text, soft_wrap=True)


def print_skipped(problems: list[str]) -> None:
    """Name the records that are left out of a table."""
    for problem in problems:
        print_remark(f"skipped: {problem}")


def agreeing(records: list[Record]) -> list[Record]:
    """Return the records that can be averaged, and name the others."""
    kept, problems = record.agreeing(records)
    print_skipped(problems)
    return kept


def print_mixed_versions(records: list[Record]) -> None:
    """Name the rows whose records come from several versions: their means may mix different things."""
    for row in rows.table_rows(records):
        if len(versions := sorted({member.versions.get("forgetless", "unknown") for member in row.records})) > 1:
            print_remark(f"{row.label}: its records come from the versions {', '.join(versions)}")


def print_rows(records: list[Record]) -> None:
    """Print a table with one row per method."""
    table = Table(box=None, padding=(0, 1))
    for number, heading in enumerate(rows.HEADINGS):
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows.table_rows(records):
        table.add_row(*rows.cells(row))
    stdout.print(table)


def print_by_stream(records: list[Record]) -> None:
    """Print a table for each stream."""
    for stream, members in rows.by_stream(records).items():
        stdout.print(stream)
        print_rows(members)


def progress_bar() -> Progress:
    """Return a progress bar that disappears when it ends."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True)


class SweepProgress:
    """A progress bar for many runs. Failures are printed at once."""

    def __init__(self, total: int) -> None:
        self.done = self.existing = self.failed = 0
        self._running: set[str] = set()
        self._total = total
        self._bar = progress_bar()
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

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
            if event.earlier:
                self._total -= 1
                self._bar.update(self._task, total=self._total)
            else:
                self._bar.advance(self._task)
        self._bar.update(self._task, description=f"{self}, {len(self._running)} running")
