"""Finished runs: whether a record is current, and how a run is repeated. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from forgetless.experiments import record
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import write_whole

ASIDE = "record.old.json"


def set_aside(out: Path, settings: Settings) -> None:
    """Rename the record of a run, if there is one, so that the run is done again."""
    file = record.path(out, settings)
    if file.exists():
        write_whole(file.read_bytes(), file.with_name(ASIDE))
        file.unlink()
