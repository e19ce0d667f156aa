"""Jobs: the runs that one process executes, and what it reports about them. Imports no torch; ``run_job`` does.

Local processes (``workers``) and Ray tasks (``ray``) both execute jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forgetless.config import catalogue
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings

LANES = 8  # runs per job on a GPU: more were not faster on an H200 (docs/speed.md)


@dataclass(frozen=True)
class Planned:
    """The settings of a run, and where each value comes from."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True)
class RunStarted:
    """A run has started."""

    settings: Settings


@dataclass(frozen=True)
class Outcome:
    """How a run ended: with a record, or with an error.

    An error without a trace says nothing about the settings: the process or node died, or a file could not be read.
    """

    id: str
    record: Record | None = None
    error: str | None = None
    trace: str | None = None


def run_job(runs: Sequence[Planned], lanes: int | None, out: Path, **options: Any) -> Iterator[Outcome]:
    """Execute runs, all on the CPU or all on one GPU, in this process and yield how each ended.

    The options are further arguments of ``run_lanes``.
    """
    from forgetless.data.readers.files import DataError
    from forgetless.experiments.checkpoint import CheckpointError
    from forgetless.experiments.pack import run_lanes

    catalogue.find_modules_here()
    on_gpu = any(run.settings.device.startswith("cuda") for run in runs)
    sources = {run.settings.id: run.sources for run in runs}
    for settings, result in run_lanes([run.settings for run in runs], lanes if on_gpu else 1, out, sources, **options):
        if isinstance(result, Record):
            yield Outcome(settings.id, result)
        else:
            outside = isinstance(result.error, OSError | DataError | CheckpointError)
            message = f"{type(result.error).__name__}: {result.error}{result.place}"
            yield Outcome(settings.id, error=message, trace=None if outside else result.trace)


def group_by_training(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Return the runs in groups that share one training, so that one process can train once for all of them."""
    groups: dict[str, list[Planned]] = {}
    for run in runs:
        groups.setdefault(run.settings.training_id, []).append(run)
    return list(groups.values())
