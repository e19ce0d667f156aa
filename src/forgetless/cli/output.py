"""What the commands print: results, notes, remarks and errors.

Results go to stdout. Notes (where a file is) go to stdout and remarks to stderr; ``--quiet`` leaves both out. Errors
and warnings always go to stderr.
"""

import json
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.reports import rows


def _console(*, stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)  # folder names may look like markup


results, notes = _console(), _console()
remarks, errors = _console(stderr=True), _console(stderr=True)


def silence() -> None:
    """Print only results, errors and warnings from now on."""
    notes.quiet = remarks.quiet = True


def print_line(text: str) -> None:
    """Print a result without breaking its lines, so that file names stay in one piece."""
    results.print(text, soft_wrap=True)


def print_note(text: str) -> None:
    """Print to stdout something about a result, such as where its file is."""
    notes.print(text, soft_wrap=True)


def print_remark(text: str) -> None:
    """Print to stderr something about the progress."""
    remarks.print(text, soft_wrap=True)


def print_error(text: str) -> None:
    """Print an error or a warning to stderr."""
    errors.print(text, soft_wrap=True)


def print_json(values: Any) -> None:
    """Print plain data as one line of JSON."""
    print_line(json.dumps(values))


def print_skipped(problems: Iterable[str]) -> None:
    """Name the records that are left out of a table."""
    for problem in problems:
        print_error(f"skipped: {problem}")


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
    results.print(table)


def print_rows(records: list[Record]) -> None:
    """Print a table with one row per method."""
    print_table(rows.HEADINGS, map(rows.cells, rows.table_rows(records)), numbers=True)


def print_by_stream(records: list[Record]) -> None:
    """Print a table for each stream."""
    for stream, members in rows.by_stream(records).items():
        print_line(stream)
        print_rows(members)
    print_mixed_versions(records)


def print_mixed_versions(records: list[Record]) -> None:
    """Name the rows whose records come from several versions: their means may mix different things."""
    for row in rows.table_rows(records):
        if len(versions := sorted({member.versions.get("forgetless", "unknown") for member in row.records})) > 1:
            print_error(f"{row.label}: its records come from the versions {', '.join(versions)}")
