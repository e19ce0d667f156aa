"""From settings to objects, and one run from settings to its record. Configuration stops here."""

from __future__ import annotations

import inspect
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import forgetless
from forgetless import catalogue, record, scores
from forgetless.catalogue import nearest
from forgetless.config import Settings
from forgetless.contract import check
from forgetless.engine import find_device
from forgetless.finetuning import Finetune
from forgetless.lanes import Failed, interleave
from forgetless.methods import Method
from forgetless.record import Record
from forgetless.stream import Stream
from forgetless.training import Ended, Event, Result, Run, fits, is_own, train, with_seed


def build_stream(settings: Settings) -> Stream:
    make = catalogue.load("stream", settings.stream)
    stream: Stream = make if isinstance(make, Stream) else make(**_accepted(make, {"order": settings.order}))
    return stream.validation() if settings.validation else stream


def build_method(settings: Settings) -> Method:
    kind = catalogue.load("method", settings.method)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"method {settings.method!r} is not a subclass of forgetless.methods.Method")
    known: list[str] = [f.name for f in fields(kind) if f.init] if is_dataclass(kind) else []
    for name in settings.options:
        if name not in known:
            own = f"its own settings: {', '.join(known)}" if known else "it has no settings of its own"
            hint = nearest(name, [*known, *(f.name for f in fields(Settings))])
            raise ValueError(f"{settings.method} has no setting {name!r}{hint} ({own})")
    return kind(**settings.options)


def build_network(settings: Settings, stream: Stream) -> nn.Module:
    make = catalogue.load("network", settings.network)
    sizes = {"classes": stream.classes, "inputs": math.prod(stream.shape), "channels": stream.shape[0]}
    return with_seed(lambda: make(**_accepted(make, sizes)), settings.seed)


def build_finetune(settings: Settings) -> Finetune | None:
    if settings.repair == "none":
        return None
    assert settings.steps is not None
    assert settings.ft_lr is not None
    assert settings.threshold is not None
    return Finetune(
        every=settings.every if settings.repair == "k-fpf" else None,
        steps=settings.steps,
        lr=settings.ft_lr,
        distill=settings.kd,
        groups=settings.groups or "auto",
        threshold=settings.threshold,
    )


def start(settings: Settings, stream: Stream | None = None, *, eager: bool = False) -> Run:
    """A run on its way. On a GPU its steps are replayed, unless ``eager`` or a user's method breaks the contract."""
    method, finetune = build_method(settings), build_finetune(settings)
    stream = build_stream(settings) if stream is None else stream
    on_gpu = settings.device.startswith("cuda")
    network = build_network(settings, stream)
    capture = on_gpu and not eager and is_own(network) and (is_own(method) or _keeps_contract(settings))
    return train(
        stream, method, network, epochs=settings.epochs, batch=settings.batch, lr=settings.lr,
        replay=settings.replay, buffer=settings.buffer, finetune=finetune, weight_decay=settings.weight_decay,
        freeze=settings.freeze, seed=settings.seed, device=settings.device, precision=settings.precision,
        capture=capture,
    )  # fmt: skip


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    out: Path | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    stream: Stream | None = None,
    *,
    eager: bool = False,
) -> Record:
    """One run and its record, in ``out/<id>/record.json``; a record that is there already is given back as it is."""
    if out is not None and record.path(out, settings).exists():
        return record.read(record.path(out, settings))
    result = None
    for event in start(settings, stream, eager=eager):
        on_event(event)
        if isinstance(event, Ended):
            result = event.result
    assert result is not None
    return _leave(settings, sources or {}, result, out)


def run_lanes(
    runs: Sequence[Settings],
    lanes: int | None = None,
    out: Path | None = None,
    sources: Mapping[str, Mapping[str, str]] | None = None,
    streams: dict[tuple[object, ...], Stream] | None = None,
    on_start: Callable[[Settings], None] = lambda settings: None,
) -> Iterator[tuple[Settings, Record | Failed]]:
    """Runs side by side on one GPU (``lanes``), elsewhere one after the other; gives what became of each as it ends.

    Those whose record is in ``out`` are not done again. A run that fails gives its error, and the others go on. Streams
    that several runs share are read once, and kept on the device once; given as ``streams``, over several calls too.
    ``sources`` are by the runs' ids.
    """
    streams = {} if streams is None else streams

    def begin(settings: Settings) -> Run:
        on_start(settings)
        key = (settings.stream, settings.order, settings.validation, settings.device)
        if key not in streams:
            stream, device = build_stream(settings), find_device(settings.device)
            streams[key] = stream.to(device, images=fits(stream, device))
        return start(settings, streams[key])

    left = []
    for settings in runs:
        if out is not None and record.path(out, settings).exists():
            yield settings, record.read(record.path(out, settings))
        else:
            left.append(settings)
    for number, event in interleave((partial(begin, settings) for settings in left), lanes, isolate=True):
        if isinstance(event, Failed):
            yield left[number], event
        elif isinstance(event, Ended):
            settings = left[number]
            try:
                yield settings, _leave(settings, (sources or {}).get(settings.id, {}), event.result, out)
            except OSError as error:  # the disk is full, say
                yield settings, Failed.of(error)


def _leave(settings: Settings, sources: Mapping[str, str], result: Result, out: Path | None) -> Record:
    """The record of a run that ended, also in its file."""
    made = make_record(settings, sources, result)
    if out is not None:
        record.write(made, record.path(out, settings))
    return made


def _keeps_contract(settings: Settings) -> bool:
    """Whether a user's method passes ``forgetless.check``; says so if not."""
    try:
        check(lambda: build_method(settings))
    except Exception as error:  # a user's method may fail on the contract's small stream in any way
        warnings.warn(f"{settings.method} is not captured into CUDA graphs, which is slower: {error}", stacklevel=3)
        return False
    return True


def make_record(settings: Settings, sources: Mapping[str, str], result: Result) -> Record:
    matrix = _rounded(result.accuracy_matrix)
    task_il = _rounded(result.task_il_matrix)
    return Record(
        id=settings.id,
        label=settings.label,
        settings=settings.to_dict(),
        sources=dict(sources),
        accuracy=round(scores.accuracy(matrix), 3),
        task_il_accuracy=round(scores.accuracy(task_il), 3),
        anytime=[round(value, 3) for value in scores.anytime(matrix)],
        forgetting=_round(scores.forgetting(matrix)),
        backward_transfer=_round(scores.backward_transfer(matrix)),
        forward_transfer=_round(scores.forward_transfer(matrix, result.untrained)),
        accuracy_matrix=matrix,
        task_il_matrix=task_il,
        untrained=[round(value, 3) for value in result.untrained],
        before_finetuning=None if result.before_finetuning is None else [round(v, 3) for v in result.before_finetuning],
        sensitivity={group.name: group.sensitivity for group in result.profile.groups},
        chosen=list(result.profile.chosen) if settings.repair != "none" else [],
        share=result.profile.share if settings.repair != "none" else 0.0,
        parameters={group.name: group.parameters for group in result.profile.groups},
        losses=[list(row) for row in result.losses],
        epoch_changes=[list(row) for row in result.epoch_changes],
        task_changes=[list(row) for row in result.task_changes],
        finetunings=[
            {"step": f.step, "groups": list(f.groups), "first_loss": f.first_loss, "last_loss": f.last_loss}
            for f in result.finetunings
        ],
        flops=result.flops,
        seconds=result.seconds,
        steps=result.steps,
        versions={
            "forgetless": forgetless.__version__,
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
        device=torch.cuda.get_device_name(settings.device)
        if settings.device.startswith("cuda")
        else f"{platform.machine()} CPU",
        engine=result.engine,
        tensor_changes={name: [_digits(v) for v in values] for name, values in result.tensor_changes.items()},
        boundaries=list(result.boundaries),
    )


def _accepted(call: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``values`` that ``call`` has a parameter for, and that are given."""
    parameters = inspect.signature(call).parameters
    return {name: value for name, value in values.items() if name in parameters and value is not None}


def _rounded(matrix: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in matrix]


def _digits(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
