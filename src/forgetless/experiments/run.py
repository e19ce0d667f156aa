"""Train one run and leave its record."""

import platform
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy
import torch

import forgetless
from forgetless.config import catalogue
from forgetless.data.stream import Stream
from forgetless.experiments import record
from forgetless.experiments.build import build_stream
from forgetless.experiments.checkpoint import CheckpointedRun, Stop, Stopped
from forgetless.experiments.finished import find_current
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
        if (current := find_current(out, settings)) is not None:
            return current
        check_folder(out)
    stop = stop or Stop()
    stream = build_stream(settings) if stream is None else stream
    checkpointed = CheckpointedRun(settings, stream, out, schedule, sources=sources or {}, eager=eager)
    with closing(log(checkpointed.run)) as events:
        for event in events:
            on_event(event)
            if not isinstance(event, Ended) and checkpointed.observe(event, stop):
                raise Stopped
    assert isinstance(event, Ended)
    return finish(checkpointed, event.result, out)


def finish(checkpointed: CheckpointedRun, result: Result, out: Path | None) -> Record:
    """Return the record of a run that has ended. Write it to ``out`` and remove the run's checkpoint.

    If the disk is full, the record is written to the temporary folder.
    """
    finished = make_record(checkpointed.settings, checkpointed.sources, result, checkpointed.code)
    try:
        if out is not None:
            record.write(finished, out / finished.id / record.NAME)
    except OSError as error:
        spare = Path(tempfile.gettempdir()) / f"forgetless-{finished.id}.json"
        try:
            record.write(finished, spare)
        except OSError:
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; the record was saved as {spare}: copy it there") from error
    checkpointed.finish()
    return finished


def make_record(
    settings: Settings, sources: Mapping[str, str], result: Result, code: Mapping[str, str] | None = None
) -> Record:
    """Return the record of a run's result; ``code`` has the checksums of the user's files when the run started."""
    matrix, task_il = _rounded(result.accuracy_matrix), _rounded(result.task_il_matrix)
    # A method that learns only at the end, as GDumb does, has nothing to forget before, unless anytime tests it there.
    forgets = settings.anytime or catalogue.load("method", settings.method).finish is Method.finish
    repairs = settings.finetune is not None
    on_gpu = settings.device.startswith("cuda")
    versions = {module.__name__: module.__version__ for module in (forgetless, torch, numpy)}
    return Record(
        id=settings.id,
        label=settings.label,
        settings=settings.to_dict(),
        sources=dict(sources),
        accuracy=_rounded(metrics.accuracy(matrix)),
        task_il_accuracy=_rounded(metrics.accuracy(task_il)),
        anytime=_rounded(metrics.anytime(matrix)),
        forgetting=_rounded(metrics.forgetting(matrix)) if forgets else None,
        backward_transfer=_rounded(metrics.backward_transfer(matrix)) if forgets else None,
        forward_transfer=_rounded(metrics.forward_transfer(matrix, result.untrained)) if forgets else None,
        accuracy_matrix=matrix,
        task_il_matrix=task_il,
        untrained=_rounded(result.untrained),
        before_finetuning=_rounded(result.before_finetuning),
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
        versions=versions | {"python": platform.python_version()},
        device=torch.cuda.get_device_name(settings.device) if on_gpu else f"{platform.machine()} CPU",
        engine=result.engine,
        tensor_changes={name: [float(f"{v:.4g}") for v in values] for name, values in result.tensor_changes.items()},
        boundaries=list(result.boundaries),
        code=dict(code or {}),
    )


def _rounded(value: Any) -> Any:
    """Return a number, or all numbers of nested sequences, with three digits; ``None`` stays."""
    if isinstance(value, float):
        return round(value, 3)
    return None if value is None else [_rounded(part) for part in value]
