"""Train one run and leave its record."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path

import numpy
import torch

import forgetless
from forgetless.config import catalogue
from forgetless.data.stream import Stream
from forgetless.experiments import record
from forgetless.experiments.build import build_stream
from forgetless.experiments.checkpoint import CheckpointedRun, Stop, Stopped
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import Schedule, check_folder
from forgetless.methods import Method
from forgetless.training import metrics
from forgetless.training.events import Ended, Event, Result
from forgetless.training.loop import Run


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    out: Path | str | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    stream: Stream | None = None,
    *,
    eager: bool = False,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
    log: Callable[[Run], Run | Generator[Event]] = lambda events: events,
) -> Record:
    """Train a run and return its record. A run that has a record in ``out`` is not trained again.

    Args:
        settings: The settings of the run.
        sources: Where each setting comes from, for the record.
        out: Folder for ``<id>/record.json`` and the checkpoint. A run resumes from a checkpoint there.
        on_event: Called with every event.
        stream: The stream, if it was built before.
        eager: On a GPU, call every step instead of replaying CUDA graphs.
        schedule: When checkpoints are written. Default: only on ``stop``.
        stop: A request to stop. The run then writes a last checkpoint and raises ``Stopped``.
        log: Wraps the events, as the functions of ``loggers`` do.
    """
    if out is not None:
        out = record.folder(out)
        if record.path(out, settings).exists():
            return record.read_run(out, settings)
        check_folder(out)
    stop = stop or Stop()
    stream = build_stream(settings) if stream is None else stream
    checkpointed = CheckpointedRun(settings, stream, out, schedule, sources=sources or {}, eager=eager)
    result = None
    with closing(log(checkpointed.run)) as events:
        for event in events:
            on_event(event)
            if isinstance(event, Ended):
                result = event.result
            elif checkpointed.observe(event, stop):
                raise Stopped
    assert result is not None
    finished = make_record(settings, sources or {}, result)
    write_record(finished, out)
    checkpointed.finish()
    return finished


def write_record(finished: Record, out: Path | None) -> None:
    """Write the record of a finished run into ``out``, or into the temporary folder if the disk is full."""
    if out is None:
        return
    try:
        record.write(finished, out / finished.id / record.NAME)
    except OSError as error:
        spare = Path(tempfile.gettempdir()) / f"forgetless-{finished.id}.json"
        try:
            record.write(finished, spare)
        except OSError:
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; the record was saved as {spare}: copy it there") from error


def make_record(settings: Settings, sources: Mapping[str, str], result: Result) -> Record:
    """Return the record of a run's result."""
    matrix, task_il = _round_rows(result.accuracy_matrix), _round_rows(result.task_il_matrix)
    # A method that learns only at the end, as GDumb does, has nothing to forget before, unless anytime tests it there.
    forgets = settings.anytime or catalogue.load("method", settings.method).finish is Method.finish
    repairs = settings.finetune is not None
    on_gpu = settings.device.startswith("cuda")
    return Record(
        id=settings.id,
        label=settings.label,
        settings=settings.to_dict(),
        sources=dict(sources),
        accuracy=round(metrics.accuracy(matrix), 3),
        task_il_accuracy=round(metrics.accuracy(task_il), 3),
        anytime=_round_all(metrics.anytime(matrix)),
        forgetting=_round(metrics.forgetting(matrix)) if forgets else None,
        backward_transfer=_round(metrics.backward_transfer(matrix)) if forgets else None,
        forward_transfer=_round(metrics.forward_transfer(matrix, result.untrained)) if forgets else None,
        accuracy_matrix=matrix,
        task_il_matrix=task_il,
        untrained=_round_all(result.untrained),
        before_finetuning=None if result.before_finetuning is None else _round_all(result.before_finetuning),
        sensitivity={group.name: group.sensitivity for group in result.profile.groups},
        chosen=list(result.profile.chosen) if repairs else [],
        share=result.profile.share if repairs else 0.0,
        parameters={group.name: group.parameters for group in result.profile.groups},
        losses=[list(row) for row in result.losses],
        epoch_changes=[list(row) for row in result.epoch_changes],
        task_changes=[list(row) for row in result.task_changes],
        finetunings=[{**vars(repaired), "groups": list(repaired.groups)} for repaired in result.finetunings],
        flops=result.flops,
        seconds=result.seconds,
        steps=result.steps,
        versions=_versions(),
        device=torch.cuda.get_device_name(settings.device) if on_gpu else f"{platform.machine()} CPU",
        engine=result.engine,
        tensor_changes={name: [float(f"{v:.4g}") for v in values] for name, values in result.tensor_changes.items()},
        boundaries=list(result.boundaries),
    )


def _versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    modules = {"forgetless": forgetless, "torch": torch, "numpy": numpy}
    return {name: module.__version__ for name, module in modules.items()} | {"python": platform.python_version()}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _round_all(values: tuple[float, ...] | list[float]) -> list[float]:
    return [round(value, 3) for value in values]


def _round_rows(matrix: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    return [_round_all(row) for row in matrix]
