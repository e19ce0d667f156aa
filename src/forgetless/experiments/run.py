"""From settings to objects, and one run from settings to its record. Configuration stops here."""

from __future__ import annotations

import inspect
import math
import platform
import sys
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy
import torch
from torch import nn

import forgetless
from forgetless.compute.engine import find_device
from forgetless.config import catalogue
from forgetless.data.stream import Stream
from forgetless.experiments import checkpoint, record
from forgetless.experiments.checkpoint import Stop, Stopped
from forgetless.experiments.lanes import Failed, Postponed, interleave
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, check_options
from forgetless.experiments.storage import Schedule, check_folder, check_path
from forgetless.methods import Method
from forgetless.networks.seed import with_seed
from forgetless.training import metrics as scores
from forgetless.training.contract import check
from forgetless.training.events import Ended, Event, Result, Stepped, Trained
from forgetless.training.loop import Run, train
from forgetless.training.plain import check_plain, copied
from forgetless.training.state import fits, is_built_in

PATIENCE = 20.0  # seconds that runs in lanes are given to reach a step that can be kept


def build_stream(settings: Settings) -> Stream:
    make = catalogue.load("stream", settings.stream)
    if settings.order is not None and not _takes(make, "order"):
        raise ValueError(f"order is {settings.order}, but stream {settings.stream!r} takes none")
    stream = make if isinstance(make, Stream) else _made("stream", settings.stream, make, {"order": settings.order})
    if not isinstance(stream, Stream):
        raise ValueError(f"stream {settings.stream!r} gives a {type(stream).__name__}; it must give a Stream")
    return stream.validation() if settings.validation else stream


def stream_key(settings: Settings) -> tuple[object, ...]:
    """The same for runs that read the same stream on the same device."""
    return settings.stream, settings.order, settings.validation, settings.device


def build_method(settings: Settings) -> Method:
    kind = catalogue.load("method", settings.method)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ValueError(f"method {settings.method!r} is not a subclass of forgetless.methods.Method")
    check_options(settings.method, settings.options)
    try:
        method: Method = kind(**settings.options)
    except TypeError as error:  # a setting without a value, or a part of the contract that is not written
        raise ValueError(f"{settings.method} cannot be made: {error}") from error
    return method


_MADE: WeakSet[nn.Module] = WeakSet()  # one that is given twice would go on from another run's weights


def build_network(settings: Settings, stream: Stream) -> nn.Module:
    make = catalogue.load("network", settings.network)
    sizes = {"classes": stream.classes, "inputs": math.prod(stream.shape), "channels": stream.shape[0]}
    network = with_seed(lambda: _made("network", settings.network, make, sizes), settings.seed)
    if not isinstance(network, nn.Module):
        raise ValueError(f"network {settings.network!r} gives a {type(network).__name__}; it must give an nn.Module")
    if network in _MADE:
        raise ValueError(f"network {settings.network!r} gives one object again and again; it must make a new one")
    _MADE.add(network)
    return network


def start(
    settings: Settings, stream: Stream | None = None, *, eager: bool = False, state: Mapping[str, Any] | None = None
) -> Run:
    """A run on its way, or on its way again from ``state``.

    On a GPU its steps are replayed, unless ``eager`` or a user's method breaks the contract.
    """
    method = build_method(settings)
    stream = build_stream(settings) if stream is None else stream
    on_gpu = settings.device.startswith("cuda")
    network = build_network(settings, stream)
    capture = on_gpu and not eager and is_built_in(network) and (is_built_in(method) or _keeps_contract(settings))
    return train(stream, method, network, settings, capture=capture, state=state)


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
            about = _about(settings, data or stream.checksum, sources)
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
            check_plain(state or {})
        except TypeError as error:  # a method of the user's
            warnings.warn(f"no checkpoints are written: {error}", stacklevel=2)
            self._writer = None
            return asked
        except (RuntimeError, MemoryError) as error:  # a copy of the state does not fit beside the others: the run does
            self._writer.skip(event.step, error)
            return asked
        if state is None:
            return False
        self._writer.write(state, event.step, now=asked)
        return asked

    def ended(self) -> None:
        """The run has its record: no checkpoint is needed any more."""
        if self._writer is not None:
            self._writer.close(remove=True)


def _about(settings: Settings, data: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """What a checkpoint belongs to."""
    return {
        "settings": settings.to_dict(), "data": data, "torch": torch.__version__,
        "forgetless": forgetless.__version__, "sources": dict(sources), "code": _own_code(settings),
    }  # fmt: skip


def _own_code(settings: Settings) -> dict[str, str]:
    """Of a user's stream, method and network the checksum of the file they are in."""
    found = {}
    for kind, name in settings.own_parts.items():
        part, (module, _) = catalogue.load(kind, name), catalogue.module_of(name)
        if inspect.isroutine(part) or inspect.isclass(part):  # not of a value, as a stream may be
            module = part.__module__
        with suppress(OSError):  # it is in no file
            file = getattr(sys.modules.get(module), "__file__", None) or ""
            found[name] = f"{zlib.crc32(Path(file).read_bytes()):08x}"
    return found


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
    if out is not None:
        check_path(out)
        if record.path(out, settings).exists():
            return record.of(out, settings)
        check_folder(out)
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
    that several runs share are read once, and kept on the device once; given as ``streams``, by ``stream_key`` and with
    their ``checksum``, over several calls too.
    Runs that differ only in FPF's finetuning, or in that there is none, share one training: each of them goes on from
    its end, as it would alone.
    ``sources`` are by the runs' ids; ``schedule`` and ``stop`` as for ``run``.
    """
    if out is not None:
        check_folder(out)
    pack = _Pack(out, sources or {}, {} if streams is None else streams, on_start, schedule, stop or Stop())
    trainings: dict[str, list[Settings]] = {}
    for settings in {one.id: one for one in runs}.values():
        if out is None or not record.path(out, settings).exists():
            trainings.setdefault(settings.training, []).append(settings)
            continue
        try:
            made: Record | Failed = record.of(out, settings)
        except ValueError as error:  # it is damaged
            made = Failed.of(error)
        yield settings, made
    for members in trainings.values():
        pack.train_for(members)
    for number, event in interleave(pack.starts, lanes, isolate=True):
        one = pack.planned[number]
        if (became := pack.hear(one, event)) is not None:
            yield one.settings, became
        if pack.stopped():
            break
    if pack.stopped():
        pack.keep_shared()
        raise Stopped


@dataclass
class _Planned:
    """A run of a pack."""

    settings: Settings
    state: dict[str, Any] | None = None  # of a training that is over, from whose end it goes on
    sharing: list[Settings] = field(default_factory=list)  # those that wait for the end of its training
    kept: Kept | None = None  # while it is under way


@dataclass
class _Pack:
    """Runs for ``interleave``: begins each of them, and makes of its events what is to be kept and told."""

    out: Path | None
    sources: Mapping[str, Mapping[str, str]]
    streams: dict[tuple[object, ...], tuple[Stream, str]]
    on_start: Callable[[Settings], None]
    schedule: Schedule | None
    stop: Stop
    planned: list[_Planned] = field(default_factory=list)
    starts: list[Callable[[], Run | None]] = field(default_factory=list)  # of those planned, in the same order

    def train_for(self, members: list[Settings]) -> None:
        """Plan the run whose training they share: one with FPF, since others pass no ``Trained``."""
        first = next((one for one in members if one.repair == "fpf"), members[0])
        self._plan(_Planned(first, sharing=[one for one in members if one is not first]))

    def hear(self, one: _Planned, event: Event | Postponed | Failed) -> Record | Failed | None:
        """What became of a run, if this event decides it."""
        if isinstance(event, Postponed):  # it begins again
            self._close(one)
            return None
        made: Record | Failed | None = None
        if isinstance(event, Failed):
            made, one.kept = event, None
        else:
            try:
                made = self._keep(one, event)
            except Exception as error:  # the disk is full, say
                self._close(one)
                made = Failed.of(error)
        if one.kept is None:
            one.state = None
            if one.sharing:  # it left no state to share: an error, or it came from inside its finetuning
                self.train_for(one.sharing)
        return made

    def stopped(self) -> bool:
        """Whether it was asked for, and all that was under way is kept or has had its time."""
        since = self.stop.since
        under_way = any(one.kept is not None for one in self.planned)
        return since is not None and (not under_way or time.monotonic() - since > PATIENCE)

    def keep_shared(self) -> None:
        """Leave those that were not begun what they would go on from: the end of a training that another has made."""
        if not isinstance(self.out, Path):  # an object store keeps no checkpoints
            return
        for one in self.planned:
            if one.state is None or one.kept is not None:
                continue
            settings, (_, data) = one.settings, self.streams[stream_key(one.settings)]
            about = _about(settings, data, self.sources.get(settings.id, {}))
            try:
                checkpoint.save(one.state, about, checkpoint_path(self.out, settings))
            except OSError as error:
                warnings.warn(f"no checkpoint was written: {error}", stacklevel=2)

    def _plan(self, one: _Planned) -> None:
        self.planned.append(one)
        self.starts.append(partial(self._begin, one))

    def _begin(self, one: _Planned) -> Run | None:
        if self.stop.since is not None:
            return None
        settings = one.settings
        self.on_start(settings)
        key = stream_key(settings)
        if key not in self.streams:
            stream, device = build_stream(settings), find_device(settings.device)
            stream = stream.to(device, images=fits(stream, device))
            self.streams[key] = stream, stream.checksum
        stream, data = self.streams[key]
        sources, state = self.sources.get(settings.id, {}), copied(one.state)
        one.kept = Kept(settings, stream, self.out, self.schedule, sources=sources, data=data, state=state)
        return one.kept.run

    def _keep(self, one: _Planned, event: Event) -> Record | None:
        """The record at the end of a run; before it, its checkpoints, and what it shares."""
        kept = one.kept
        assert kept is not None
        if isinstance(event, Ended):
            made = _leave(one.settings, self.sources.get(one.settings.id, {}), event.result, self.out)
            kept.ended()
            one.kept = None
            return made
        if isinstance(event, Trained):
            self._share(one, kept.run)
        elif kept.saw(event, self.stop):
            self._close(one)
        return None

    def _share(self, one: _Planned, run: Run) -> None:
        if one.sharing:
            with suppress(RuntimeError, MemoryError):  # memory may be short: then the next of them trains too
                one.state = copied(run.state_dict(), "cpu")  # which no stream of the GPU is still at work on
                for other in one.sharing:
                    self._plan(_Planned(other, one.state))
                one.sharing = []

    def _close(self, one: _Planned) -> None:
        if one.kept is not None:
            one.kept.run.close()
            one.kept = None


def _leave(settings: Settings, sources: Mapping[str, str], result: Result, out: Path | None) -> Record:
    """The record of a run that ended, also in its file."""
    made = make_record(settings, sources, result)
    if out is None:
        return made
    try:
        record.write(made, record.path(out, settings))
    except OSError as error:  # the disk is full, say, and the run is over
        spare = Path(tempfile.gettempdir()) / f"forgetless-{settings.id}.json"
        try:
            record.write(made, spare)
        except OSError:
            raise error from None
        raise OSError(error.errno, f"{error.strerror}; the record is kept as {spare}: copy it there") from error
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
    # What learns at the end alone, as GDumb does, has nothing to forget before it, unless anytime tests it there.
    learns = settings.anytime or catalogue.load("method", settings.method).finish is Method.finish
    return Record(
        id=settings.id,
        label=settings.label,
        settings=settings.to_dict(),
        sources=dict(sources),
        accuracy=round(scores.accuracy(matrix), 3),
        task_il_accuracy=round(scores.accuracy(task_il), 3),
        anytime=[round(value, 3) for value in scores.anytime(matrix)],
        forgetting=_round(scores.forgetting(matrix)) if learns else None,
        backward_transfer=_round(scores.backward_transfer(matrix)) if learns else None,
        forward_transfer=_round(scores.forward_transfer(matrix, result.untrained)) if learns else None,
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


def _made(kind: str, name: str, make: Any, offered: Mapping[str, Any]) -> Any:
    """What ``make`` gives, called with those of ``offered`` that it takes; an error where it asks for more."""
    if not callable(make) or isinstance(make, nn.Module):
        raise ValueError(f"{kind} {name!r} is a {type(make).__name__}; it must be a function that makes one")
    given = {name: value for name, value in offered.items() if _takes(make, name) and value is not None}
    try:
        inspect.signature(make).bind(**given)
    except TypeError as error:
        raise ValueError(f"{kind} {name!r} is called with {', '.join(given) or 'nothing'}: {error}") from None
    return make(**given)


def _takes(make: Any, name: str) -> bool:
    return callable(make) and name in inspect.signature(make).parameters


def _rounded(matrix: tuple[tuple[float, ...], ...]) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in matrix]


def _digits(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
