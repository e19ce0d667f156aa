"""Sweeps: many runs, on this machine or on a Ray cluster. Imports no torch; the processes that train do.

Finished runs are skipped. A failed run is recorded in ``error.json`` and does not stop the others.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from forgetless.experiments import ray, record, workers
from forgetless.experiments.execution import Execution
from forgetless.experiments.finished import changed_code, find_current, user_code
from forgetless.experiments.jobs import Planned, RunDone, RunFailed, RunStarted, SweepEvent
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import check_folder

RETRY_HINT = (
    "the same call repeats runs whose process died or whose files were missing, and with retry (--retry) also those "
    "that left an error.json"
)


def sweep(runs: Sequence[Planned], out: Path, execution: Execution | None = None) -> Iterator[SweepEvent]:
    """Execute the runs that have no record in ``out`` yet, each once, and yield what happens to each.

    By default the runs are executed on this machine, in one process per core.
    """
    execution = execution or Execution()
    check_folder(out)
    left: list[Planned] = []
    for run in {run.settings.id: run for run in runs}.values():
        error_file = error_path(out, run.settings)
        try:
            current = find_current(out, run.settings)
        except (ValueError, OSError) as error:  # the file is corrupt
            yield RunFailed(run.settings, str(error))
            continue
        if current is not None:
            yield RunDone(run.settings, earlier=True)
            continue
        failure = json.loads(error_file.read_text()) if error_file.exists() and not execution.retry else None
        if failure is None or changed_code(failure.get("code", {}), run.settings):
            left.append(run)
        else:
            yield RunFailed(run.settings, failure["error"], earlier=True)
    if not left:
        return
    execute = ray.execute if execution.on == "ray" else workers.execute
    for event in execute(left, out, execution):
        yield event if isinstance(event, RunStarted) else _conclude(event, out)


def error_path(out: Path, settings: Settings) -> Path:
    """Return the file that holds the error of a failed run."""
    return out / settings.id / "error.json"


def _conclude(event: RunDone | RunFailed, out: Path) -> RunDone | RunFailed:
    """Write the record of a run if its process could not, or its error, and return the event."""
    settings = event.settings
    file = error_path(out, settings)
    if isinstance(event, RunDone):
        if event.record is not None and not record.path(out, settings).exists():  # a node without our folder
            record.write(event.record, record.path(out, settings))
        with suppress(FileNotFoundError):  # there may be none, or another sweep was faster
            file.unlink()
    elif not event.lost:
        values = {"id": settings.id, "label": settings.label, "settings": settings.to_dict(), "error": event.error}
        try:
            record.write_json({**values, "trace": event.trace, "code": user_code(settings)}, file)
        except OSError as error:  # the disk may be full; the other runs continue
            return RunFailed(settings, f"{event.error}; {file} could not be written either: {error}")
    return event
