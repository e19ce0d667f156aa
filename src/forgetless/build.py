"""From settings to objects, and one run from settings to its record. Configuration stops here."""

from __future__ import annotations

import inspect
import math
import platform
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

import forgetless
from forgetless import catalogue, checkpoint, record, scores
from forgetless.catalogue import nearest
from forgetless.checkpoint import Schedule, Stop, Stopped
from forgetless.config import Settings
from forgetless.contract import check
from forgetless.engine import find_device
from forgetless.finetuning import Finetune
from forgetless.lanes import Failed, Postponed, interleave
from forgetless.methods import Method
from forgetless.record import Record
from forgetless.stream import Stream
from forgetless.training import Ended, Event, Result, Run, Stepped, Trained, copied, fits, is_own, train, with_seed

Outcome = tuple[str, str] | None  # of a run: its error and the trace of it, if it failed
PATIENCE = 20.0  # seconds that runs in lanes are given to reach a step that can be kept


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


def start(
    settings: Settings, stream: Stream | None = None, *, eager: bool = False, state: Mapping[str, Any] | None = None
) -> Run:
    """A run on its way, or on its way again from ``state``.

    On a GPU its steps are replayed, unless ``eager`` or a user's method breaks the contract.
    """
    method, finetune = build_method(settings), build_finetune(settings)
    stream = build_stream(settings) if stream is None else stream
    on_gpu = settings.device.startswith("cuda")
    network = build_network(settings, stream)
    capture = on_gpu and not eager and is_own(network) and (is_own(method) or _keeps_contract(settings))
    return train(
        stream, method, network, epochs=settings.epochs, batch=settings.batch, lr=settings.lr,
        replay=settings.replay, buffer=settings.buffer, finetune=finetune, weight_decay=settings.weight_decay,
        freeze=settings.freeze, seed=settings.seed, device=settings.device, precision=settings.precision,
        capture=capture, state=state,
    )  # fmt: skip


class Kept:
    """A run that goes on from its checkpoint, if ``out`` has one, else from ``state``; leaves others by a schedule."""

    def __init__(
        self,
        settings: Settings,
        stream: Stream,
        out: Path | None,
        schedule: Schedule | None,
        *,
        sources: Mapping[str, str],
        data: str | None = None,
        eager: bool = False,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self._writer: checkpoint.Writer | None = None
        if out is not None and isinstance(out, Path):  # not in an object store
            file = checkpoint_path(out, settings)
            about = {
                "settings": settings.to_dict(), "data": data or checkpoint.data_checksum(stream),
                "torch": torch.__version__, "forgetless": forgetless.__version__, "sources": dict(sources),
            }  # fmt: skip
            try:
                state, found = checkpoint.load(file)
                checkpoint.check(found, about, file)
            except FileNotFoundError:
                pass
            self._writer = checkpoint.Writer(file, about, schedule or Schedule(None, None))
        self.run = start(settings, stream, eager=eager, state=state)

    def saw(self, event: Event, stop: Stop) -> bool:
        """After an event: write a checkpoint if it is time; whether this was the last one, because of ``stop``."""
        asked = stop.since is not None
        if self._writer is None:  # there is nowhere to keep anything
            return asked
        if not isinstance(event, Stepped) or not (asked or self._writer.due(event.step)):
            return False
        try:
            state = self.run.state_dict()
        except TypeError as error:  # a method of the user's
            warnings.warn(f"no checkpoints are written: {error}", stacklevel=2)
            self._writer = None
            return asked
        if state is None:
            return False
        self._writer.write(state, event.step, now=asked)
        return asked

    def ended(self) -> None:
        """The run has its record: no checkpoint is needed any more."""
        if self._writer is not None:
            self._writer.close(remove=True)


def checkpoint_path(out: Path, settings: Settings) -> Path:
    return out / settings.id / checkpoint.NAME


def run(
    settings: Settings,
    sources: Mapping[str, str] | None = None,
    out: Path | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    stream: Stream | None = None,
    *,
    eager: bool = False,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
    log: Callable[[Run], Run | Generator[Event]] = lambda events: events,
) -> Record:
    """One run and its record, in ``out/<id>/record.json``; a record that is there already is given back as it is.

    With a ``schedule`` it leaves checkpoints, and on ``stop`` a last one and ``Stopped``; from a checkpoint that is
    there it goes on. ``log`` passes the events on, as those of ``loggers`` do.
    """
    if out is not None and record.path(out, settings).exists():
        return record.read(record.path(out, settings))
    stop = stop or Stop()
    stream = build_stream(settings) if stream is None else stream
    kept = Kept(settings, stream, out, schedule, sources=sources or {}, eager=eager)
    result = None
    with closing(log(kept.run)) as events:
        for event in events:
            on_event(event)
            if isinstance(event, Ended):
                result = event.result
            elif kept.saw(event, stop):
                raise Stopped
    assert result is not None
    made = _leave(settings, sources or {}, result, out)
    kept.ended()
    return made


def run_lanes(
    runs: Sequence[Settings],
    lanes: int | None = None,
    out: Path | None = None,
    sources: Mapping[str, Mapping[str, str]] | None = None,
    streams: dict[tuple[object, ...], tuple[Stream, str]] | None = None,
    on_start: Callable[[Settings], None] = lambda settings: None,
    *,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
) -> Iterator[tuple[Settings, Record | Failed]]:
    """Runs side by side on one GPU (``lanes``), elsewhere one after the other; gives what became of each as it ends.

    Those whose record is in ``out`` are not done again. A run that fails gives its error, and the others go on. Streams
    that several runs share are read once, and kept on the device once; given as ``streams``, over several calls too.
    Runs that differ only in FPF's finetuning, or in that there is none, share one training: each of them goes on from
    its end, as it would alone.
    ``sources`` are by the runs' ids; ``schedule`` and ``stop`` as for ``run``.
    """
    streams = {} if streams is None else streams
    stop = stop or Stop()
    planned: list[Settings] = []  # by their numbers; those that share a training come when it is done
    starts: list[Callable[[], Run]] = []
    sharing: dict[str, list[Settings]] = {}
    states: dict[int, dict[str, Any]] = {}
    under_way: dict[int, Kept] = {}
    closed: set[int] = set()

    def plan(settings: Settings, state: dict[str, Any] | None = None) -> None:
        number = len(planned)
        planned.append(settings)
        starts.append(partial(begin, number))
        if state is not None:
            states[number] = state

    def begin(number: int) -> Run:
        if stop.since is not None:
            raise ValueError("stopping: no further run is begun")
        settings, state = planned[number], copied(states.get(number))
        on_start(settings)
        key = (settings.stream, settings.order, settings.validation, settings.device)
        if key not in streams:
            stream, device = build_stream(settings), find_device(settings.device)
            streams[key] = stream.to(device, images=fits(stream, device)), checkpoint.data_checksum(stream)
        stream, data = streams[key]
        own = (sources or {}).get(settings.id, {})
        under_way[number] = Kept(settings, stream, out, schedule, sources=own, data=data, state=state)
        return under_way[number].run

    def train_for(members: list[Settings]) -> None:
        """Plan the run whose training they share: one with FPF, since others pass no ``Trained``."""
        first = next((one for one in members if one.repair == "fpf"), members[0])
        sharing[first.training] = [one for one in members if one is not first]
        plan(first)

    def share(number: int, run: Run) -> None:
        training = planned[number].training
        if sharing.get(training):
            with suppress(Exception):  # memory may be short, say; then the next of them trains too
                states[number] = copied(run.state_dict(), "cpu")  # which no stream of the GPU is still at work on
                for one in sharing.pop(training):
                    plan(one, states[number])

    def close(number: int) -> None:
        closed.add(number)
        under_way.pop(number).run.close()

    def became(number: int, event: Event | Postponed | Failed) -> Iterator[tuple[Settings, Record | Failed]]:
        settings, kept = planned[number], under_way.get(number)
        if isinstance(event, Postponed):
            if kept is not None:
                under_way.pop(number).run.close()
            return
        if kept is None:
            if number in closed:  # below
                return
            if isinstance(event, Failed) and stop.since is None:  # it could not begin
                yield settings, event
        elif isinstance(event, Failed):
            del under_way[number]
            yield settings, event
        elif isinstance(event, Trained):
            share(number, kept.run)
        else:
            try:
                if isinstance(event, Ended):
                    made = _leave(settings, (sources or {}).get(settings.id, {}), event.result, out)
                    kept.ended()
                    del under_way[number]
                    yield settings, made
                elif kept.saw(event, stop):
                    close(number)
            except Exception as error:  # the disk is full, say
                close(number)
                yield settings, Failed.of(error)
        if number not in under_way:
            states.pop(number, None)
            if others := sharing.pop(settings.training, []):
                # It left no state to share: an error, or it came from inside its finetuning. The next one trains.
                train_for(others)

    for settings in {one.id: one for one in runs}.values():
        if out is not None and record.path(out, settings).exists():
            yield settings, record.read(record.path(out, settings))
        else:
            sharing.setdefault(settings.training, []).append(settings)
    for members in list(sharing.values()):
        train_for(members)
    for number, event in interleave(starts, lanes, isolate=True):
        yield from became(number, event)
        if stop.since is not None and (not under_way or time.monotonic() - stop.since > PATIENCE):
            raise Stopped


Job = Sequence[tuple[Mapping[str, Any], Mapping[str, str]]]  # settings and sources of some runs, as plain data


def run_job(job: Job, lanes: int | None, out: Path, **how: Any) -> Iterator[tuple[str, Outcome, Record | None]]:
    """``run_lanes`` for another process: gives the id of each run, its error and trace if it failed, its record."""
    runs = [Settings.from_dict(settings) for settings, _ in job]
    sources = {one.id: source for one, (_, source) in zip(runs, job, strict=True)}
    if not any(one.device.startswith("cuda") for one in runs):
        lanes = 1
    for settings, made in run_lanes(runs, lanes, out, sources, **how):
        if isinstance(made, Record):
            yield settings.id, None, made
        else:
            yield settings.id, (f"{type(made.error).__name__}: {made.error}", made.trace), None


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
