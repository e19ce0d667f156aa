"""Read and write the committed records: one JSON-lines file per column in results/, one search per JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from forgetless.experiments import record
from forgetless.experiments.record import Record

RESULTS = Path(__file__).parent.parent / "results"


@cache
def records(column: str) -> tuple[Record, ...]:
    """Return the records of a column in the order of their ids; each file is read once."""
    return tuple(record.read_lines(RESULTS / f"{column}.jsonl"))


def search_file(column: str, buffer: int) -> Path:
    """Return the file that holds the search of a column with a buffer size."""
    return RESULTS / "searches" / f"{column}-{buffer}.json"


@cache
def search(column: str, buffer: int) -> dict[str, Any]:
    """Return the search of a column: for each row its grid, the validation accuracies and the chosen point."""
    found: dict[str, Any] = json.loads(search_file(column, buffer).read_text())
    return found


def add(column: str, additions: Iterable[Record]) -> None:
    """Add records to the file of a column; a record with the same id is replaced."""
    file = RESULTS / f"{column}.jsonl"
    present = record.read_lines(file) if file.exists() else []
    by_id = {each.id: each for each in [*present, *additions]}
    file.write_text("".join(json.dumps(by_id[key].to_dict()) + "\n" for key in sorted(by_id)))
