"""Many runs on this machine: what has a record is not done again, and a run that fails stops no other.

A sweep is a TOML file; every list is a range of the product, and each ``[[runs]]`` a product of its own, which takes
the settings above it:

    stream = "seq-digits"
    seeds = 3                       # 0, 1, 2; or seed = [0, 5]
    buffer = [100, 200]

    [[runs]]
    method = ["er", "derpp"]
    repair = ["none", "fpf"]

    [[runs]]
    method = "sgd"
    repair = "k-fpf"
    every = [50, 100]

On the CPU the runs are shared out to processes, one a core, each with one thread; on a GPU one process runs them in
lanes. Imports no torch: the processes do.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from forgetless import record
from forgetless.config import Settings, resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LISTS = ("groups", "order", "freeze")  # settings whose value may be a list: a range of them is a list of lists


@dataclass(frozen=True)
class Planned:
    settings: Settings
    sources: Mapping[str, str]


@dataclass(frozen=True)
class Done:
    settings: Settings
    again: bool  # whether its record was there already


@dataclass(frozen=True)
class Failed:
    settings: Settings
    error: str
    again: bool  # whether it failed in an earlier sweep, and was not tried again


def read_plan(file: Path) -> list[Planned]:
    """The runs of a sweep, each once; an error names the file and the setting."""
    values = read_toml(file)
    try:
        return plan(values)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def read_toml(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no file {file}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    return values


def plan(values: Mapping[str, Any]) -> list[Planned]:
    shared = {name: value for name, value in values.items() if name != "runs"}
    blocks = values.get("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError("runs must be blocks, each headed [[runs]]")
    found: dict[str, Planned] = {}
    for block in blocks:
        for point in _product(shared | block):
            for name in ("stream", "method"):
                if not isinstance(point.get(name), str):
                    raise ValueError(f"{name} is missing: every run needs one")
            settings, sources = resolve(point.pop("stream"), point.pop("method"), point)
            found.setdefault(settings.id, Planned(settings, sources))
    return list(found.values())


def _product(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every point of the product of the lists among ``values``."""
    ranges: dict[str, list[Any]] = {}
    for name, value in values.items():
        if name == "seeds":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"seeds is {value!r}; it must be a whole number of 1 or more, or seed a list of them")
            ranges["seed"] = list(range(value))
        elif name in LISTS and isinstance(value, list):
            ranges[name] = [_tuple(v) for v in value] if any(isinstance(v, list) for v in value) else [tuple(value)]
        else:
            ranges[name] = value if isinstance(value, list) else [value]
        if not ranges.get(name, [0]):
            raise ValueError(f"{name} is an empty list; it must have one value or more")
    for point in itertools.product(*ranges.values()):
        yield dict(zip(ranges, point, strict=True))


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def error_path(out: Path, settings: Settings) -> Path:
    return out / settings.id / "error.json"


def sweep(
    runs: Sequence[Planned], out: Path, *, workers: int | None = None, lanes: int | None = None, retry: bool = False
) -> Iterator[Done | Failed]:
    """Do the runs that have no record in ``out``; gives what became of each, as it comes.

    workers  processes for runs on the CPU (default: one a core)
    lanes    runs side by side on a GPU (default: found by trying)
    retry    also those that failed in an earlier sweep
    """
    for name, value in (("workers", workers), ("lanes", lanes)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is {value}; it must be 1 or more")
    left: list[Planned] = []
    for one in runs:
        if record.path(out, one.settings).exists():
            yield Done(one.settings, again=True)
        elif error_path(out, one.settings).exists() and not retry:
            yield Failed(one.settings, _read_error(error_path(out, one.settings)), again=True)
        else:
            left.append(one)
    on_gpu: dict[str, list[Planned]] = {}
    for one in left:
        if one.settings.device.startswith("cuda"):
            on_gpu.setdefault(one.settings.device, []).append(one)
    jobs = deque(on_gpu.values())
    jobs.extend([one] for one in left if not one.settings.device.startswith("cuda"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    yield from _share_out(jobs, out, min(len(jobs), max(len(on_gpu), workers or cores)), lanes)


def _share_out(jobs: deque[list[Planned]], out: Path, workers: int, lanes: int | None) -> Iterator[Done | Failed]:
    crew: dict[Connection, _Worker] = {}
    try:
        while jobs or crew:
            while jobs and len(crew) < workers:
                worker = _Worker(out, lanes)
                crew[worker.connection] = worker
                worker.give(jobs.popleft())
            for connection in wait(list(crew)):
                assert isinstance(connection, Connection)
                worker = crew[connection]
                try:
                    settings, error = connection.recv()
                except EOFError:  # killed, or out of memory: what it had is lost, the others go on
                    del crew[connection]
                    yield from worker.died()
                    continue
                yield worker.took_note(settings, error)
                if worker.has:
                    continue
                if jobs:
                    worker.give(jobs.popleft())
                else:
                    worker.dismiss()
                    del crew[connection]
    finally:
        for worker in crew.values():
            worker.process.kill()


class _Worker:
    """A process of its own, and the runs it has."""

    def __init__(self, out: Path, lanes: int | None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._out = out
        self.has: dict[str, Planned] = {}
        threads = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = threads or "1"  # read when torch is imported there
        try:
            self.process: BaseProcess = context.Process(target=_work, args=(theirs, out, lanes), daemon=True)
            self.process.start()
        finally:
            if threads is None:
                del os.environ["OMP_NUM_THREADS"]
        theirs.close()

    def give(self, runs: list[Planned]) -> None:
        self.has = {one.settings.id: one for one in runs}
        self.connection.send([(one.settings.to_dict(), dict(one.sources)) for one in runs])

    def took_note(self, id: str, error: tuple[str, str] | None) -> Done | Failed:
        settings = self.has.pop(id).settings
        if error is None:
            error_path(self._out, settings).unlink(missing_ok=True)
            return Done(settings, again=False)
        message, trace = error
        values = {"id": id, "label": settings.label, "settings": settings.to_dict(), "error": message, "trace": trace}
        record.write_json(values, error_path(self._out, settings))
        return Failed(settings, message, again=False)

    def died(self) -> Iterator[Failed]:
        self.process.join()
        for name in list(self.has):
            note = self.took_note(name, (f"its process ended with exit code {self.process.exitcode}", ""))
            assert isinstance(note, Failed)
            yield note

    def dismiss(self) -> None:
        self.connection.send(None)
        self.process.join()


def _work(connection: Connection, out: Path, lanes: int | None) -> None:
    """A process: takes jobs, a run or a pack of lanes each, and says what became of every run."""
    from forgetless import build

    streams: dict[Any, Any] = {}  # those of the last jobs, which mostly are the next one's too
    try:
        while (job := connection.recv()) is not None:
            if len(streams) > 1:
                streams.clear()
            runs = [Settings.from_dict(settings) for settings, _ in job]
            sources = {one.id: source for one, (_, source) in zip(runs, job, strict=True)}
            for settings, made in build.run_lanes(runs, lanes, out, sources, streams):
                if isinstance(made, record.Record):
                    connection.send((settings.id, None))
                else:
                    connection.send((settings.id, (f"{type(made.error).__name__}: {made.error}", made.trace)))
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return  # the sweep was stopped


def _read_error(file: Path) -> str:
    try:
        return str(json.loads(file.read_text())["error"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"{file} is not readable"
