"""Jobs: the runs that one process executes, and what it reports about them. Imports no torch; ``run_job`` does.

Local processes (``workers``) and Ray tasks (``ray``) both execute jobs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from forgetless.config import catalogue
from forgetless.experiments.finished import changed_code
from forgetless.experiments.record import CHECKPOINT, Record
from forgetless.experiments.settings import Settings

LANES = 8  # runs per job on a GPU: more were not faster on an H200 (docs/speed.md)


@dataclass(frozen=True)
class Planned:
    """The settings of a run, and where each value comes from."""

    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True)
class RunStarted:
    """A run has started. A run that resumes starts at a later task, after the steps that were taken before."""

    settings: Settings
    task: int = 1
    step: int = 0


@dataclass(frozen=True)
class RunDone:
    """A run has a record."""

    settings: Settings
    earlier: bool = False  # whether the record existed before this sweep
    record: Record | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RunFailed:
    """A run ended with an error."""

    settings: Settings
    error: str
    earlier: bool = False  # whether it failed in an earlier sweep and was not repeated
    lost: bool = False  # whether its process died or a file was missing; the same call then repeats the run
    trace: str = field(default="", compare=False)


SweepEvent = RunStarted | RunDone | RunFailed


def start(settings: Settings, out: Path) -> RunStarted:
    """Return the event of a run that starts now, at the task and step of its checkpoint in ``out``, if it has one."""
    with suppress(OSError, SafetensorError, ValueError, KeyError):  # there is none, or the run reports what is wrong
        with safe_open(str(out / settings.id / CHECKPOINT), framework="np") as stored:
            content = json.loads((stored.metadata() or {})["forgetless"])
        if not changed_code(content["about"]["code"], settings):
            step, task, *_ = content["state"]["place"]
            return RunStarted(settings, task + 1, step)
    return RunStarted(settings)


def run_job(runs: Sequence[Planned], lanes: int | None, out: Path, **options: Any) -> Iterator[RunDone | RunFailed]:
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
            yield RunDone(settings, record=result)
        else:
            lost = isinstance(result.error, OSError | DataError | CheckpointError)
            message = f"{type(result.error).__name__}: {result.error}{result.place}"
            yield RunFailed(settings, message, lost=lost, trace=result.trace)


def group_by_training(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Return the runs in groups that share one training, so that one process can train once for all of them."""
    groups: dict[str, list[Planned]] = {}
    for run in runs:
        groups.setdefault(run.settings.training_id, []).append(run)
    return list(groups.values())
