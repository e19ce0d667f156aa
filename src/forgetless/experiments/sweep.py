"""Sweeps: many runs, on this machine or on a Ray cluster. Imports no torch; the processes that train do.

Finished runs are skipped. A failed run is recorded in ``error.json`` and does not stop the others.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forgetless.experiments import ray, record, workers
from forgetless.experiments.execution import Execution
from forgetless.experiments.finished import changed_code, find_current, user_code
from forgetless.experiments.jobs import Outcome, Planned, RunStarted
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import check_folder

RETRY_HINT = (
    "the same call repeats runs whose process died or whose files were missing, and with retry (--retry) also those "
    "that left an error.json"
)


@dataclass(frozen=True)
class RunDone:
    """A run has a record."""

    settings: Settings
    earlier: bool  # whether the record existed before this sweep


@dataclass(frozen=True)
class RunFailed:
    """A run ended with an error."""

    settings: Settings
    error: str
    earlier: bool  # whether it failed in an earlier sweep and was not repeated
    lost: bool = False  # whether its process died or a file was missing; the same call then repeats the run


SweepEvent = RunStarted | RunDone | RunFailed


def sweep(runs: Sequence[Planned], out: Path, execution: Execution | None = None) -> Iterator[SweepEvent]:
    """Execute the runs that have no record in ``out`` yet, each once, and yield what happens to each.

    By default the runs are executed on this machine, in one process per core.
    """
    execution = execution or Execution()
    check_folder(out)
    left: dict[str, Planned] = {}
    for settings_id, run in {run.settings.id: run for run in runs}.items():
        error_file = error_path(out, run.settings)
        try:
            current = find_current(out, run.settings)
        except (ValueError, OSError) as error:  # the file is corrupt
            yield RunFailed(run.settings, str(error), earlier=False)
            continue
        if current is not None:
            yield RunDone(run.settings, earlier=True)
            continue
        failure = json.loads(error_file.read_text()) if error_file.exists() and not execution.retry else None
        if failure is None or changed_code(failure.get("code", {}), run.settings):
            left[settings_id] = run
        else:
            yield RunFailed(run.settings, failure["error"], earlier=True)
    if not left:
        return
    execute = ray.execute if execution.on == "ray" else workers.execute
    for event in execute(list(left.values()), out, execution):
        yield _conclude(left[event.id].settings, event, out) if isinstance(event, Outcome) else event


def error_path(out: Path, settings: Settings) -> Path:
    """Return the file that holds the error of a failed run."""
    return out / settings.id / "error.json"


def _conclude(settings: Settings, outcome: Outcome, out: Path) -> RunDone | RunFailed:
    """Write the record of a run if its process could not, or its error, and return the event."""
    file = error_path(out, settings)
    if outcome.error is None:
        if outcome.record is not None and not record.path(out, settings).exists():  # a node without our folder
            record.write(outcome.record, record.path(out, settings))
        with suppress(FileNotFoundError):  # there may be none, or another sweep was faster
            file.unlink()
        return RunDone(settings, earlier=False)
    if outcome.trace is None:
        return RunFailed(settings, outcome.error, earlier=False, lost=True)
    values = {"id": settings.id, "label": settings.label, "settings": settings.to_dict(), "error": outcome.error}
    try:
        record.write_json({**values, "trace": outcome.trace, "code": user_code(settings)}, file)
    except OSError as error:  # the disk may be full; the other runs continue
        return RunFailed(settings, f"{outcome.error}; {file} could not be written either: {error}", earlier=False)
    return RunFailed(settings, outcome.error, earlier=False)
