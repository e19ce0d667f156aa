"""Many runs, here or on a cluster: what has a record is not done again, and a run that fails stops no other.

A sweep is a TOML file; every list is a range of the product (of groups, freeze and order, which may be lists
themselves, a list of lists), and each ``[[runs]]`` a product of its own, which takes the settings above it:

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

Here, runs on the CPU are shared out to processes, one a core, each with one thread; each GPU has a process, which runs
its share in lanes. Runs that differ only in FPF, with it or without, are trained once, in one process. On Ray they are
tasks (``cluster``). Imports no torch: the processes do.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgetless.config import catalogue
from forgetless.config.fields import check_value
from forgetless.experiments import record
from forgetless.experiments.jobs import LANES, Outcome, Planned
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.storage import USUAL, Schedule, check_folder

if TYPE_CHECKING:
    from forgetless.experiments.checkpoint import Stop
if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLACES = ("here", "ray")
AGAIN = (
    "the same call tries what was lost with its process or for a file, and with retry (--retry) what left an "
    "error.json too"
)
PATIENCE = 30  # seconds that processes are given to leave checkpoints, when a sweep is stopped
LISTS = ("groups", "order", "freeze")  # settings whose value may be a list: a range of them is a list of lists


@dataclass(frozen=True)
class Started:
    settings: Settings


@dataclass(frozen=True)
class Done:
    settings: Settings
    again: bool  # whether its record was there already


@dataclass(frozen=True)
class Failed:
    settings: Settings
    error: str
    again: bool  # whether it failed in an earlier sweep, and was not tried again
    lost: bool = False  # through no fault of its settings: the same call tries it again


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
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; it must be a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    return values


def plan(values: Mapping[str, Any]) -> list[Planned]:
    shared = {name: value for name, value in values.items() if name != "runs"}
    blocks = values.get("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError("runs must be blocks, each headed [[runs]]")
    if not blocks:
        raise ValueError("runs is an empty list, so the plan has no run; leave it out, or head blocks [[runs]]")
    for block in [shared, *blocks]:
        for name, value in block.items():
            if any(isinstance(one, dict) for one in (value if isinstance(value, list) else [value])):
                raise ValueError(f"{name} is a block, but blocks of runs are headed [[runs]], and a setting is a value")
        if "seed" in block and "seeds" in block:
            raise ValueError(f"seeds is {block['seeds']!r} and seed is {block['seed']!r}; give one of them")
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
            check_value("seeds", value, int, least=1)
            ranges["seed"] = list(range(value))
        elif name in LISTS and isinstance(value, list):
            several = any(isinstance(v, list) or v in ("auto", "all") for v in value)
            ranges[name] = [_tuple(v) for v in value] if several else [tuple(value)]
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
    runs: Sequence[Planned],
    out: Path,
    *,
    on: str = "here",
    workers: int | None = None,
    lanes: int | None = None,
    retry: bool = False,
    schedule: Schedule = USUAL,
) -> Iterator[Started | Done | Failed]:
    """Do the runs that have no record in ``out``; gives what becomes of each, as it comes.

    on       "here": processes on this machine; "ray": a Ray cluster
    workers  processes for runs on the CPU (default: one a core)
    lanes    runs side by side on a GPU (default: 8; on Ray also how many are one task)
    retry    also those that failed in an earlier sweep
    schedule when a run leaves checkpoints; from one it goes on
    """
    check_value("on", on, str, choices=PLACES)
    check_value("workers", workers, int | None, least=1)
    check_value("lanes", lanes, int | None, least=1)
    check_folder(out)
    left: list[Planned] = []
    for one in {one.settings.id: one for one in runs}.values():
        file = record.path(out, one.settings)
        if file.exists():
            try:
                record.of(out, one.settings)
                yield Done(one.settings, again=True)
            except (ValueError, OSError) as error:
                yield Failed(one.settings, str(error), again=False)
        elif error_path(out, one.settings).exists() and not retry:
            yield Failed(one.settings, _read_error(error_path(out, one.settings)), again=True)
        else:
            left.append(one)
    if left and on == "ray":
        yield from _on_ray(left, out, lanes, schedule)
    elif left:
        yield from _here(left, out, workers, lanes, schedule)


def _note(one: Planned, out: Path, outcome: Outcome) -> Done | Failed:
    """What became of a run, an error written down beside where its record would be.

    An error without a trace is the death of its process or node, or that of a file. It says nothing of the run, and is
    not written down: the next call does it.
    """
    settings = one.settings
    file = error_path(out, settings)
    if outcome.error is None:
        with suppress(FileNotFoundError):  # mostly there is none, or another sweep was quicker
            file.unlink()
        return Done(settings, again=False)
    message = outcome.error
    if outcome.trace is None:
        return Failed(settings, message, again=False, lost=True)
    values = {"id": settings.id, "label": settings.label, "settings": settings.to_dict(), "error": message}
    try:
        record.write_json({**values, "trace": outcome.trace}, file)
    except OSError as unwritten:  # no room, say: the other runs go on
        return Failed(settings, f"{message}; nor could {file} be written: {unwritten}", again=False)
    return Failed(settings, message, again=False)


def _on_ray(
    runs: Sequence[Planned], out: Path, lanes: int | None, schedule: Schedule
) -> Iterator[Started | Done | Failed]:
    from forgetless.experiments import ray as cluster

    on_gpu: list[Planned] = []
    on_cpu: list[Planned] = []
    for one in runs:
        if one.settings.device not in ("cpu", "cuda"):
            raise ValueError(f"device is {one.settings.device!r}; on Ray it must be cpu or cuda: Ray says which GPU")
        (on_cpu if one.settings.device == "cpu" else on_gpu).append(one)
    size = lanes or LANES
    packs = _packs(_sharing(on_gpu), size) + _sharing(on_cpu)
    jobs = [cluster.Job(pack, pack[0].settings.device != "cpu") for pack in packs]
    for number, outcomes in cluster.share_out(jobs, str(out), size, schedule):
        pack = {one.settings.id: one for one in packs[number]}
        if outcomes is None:
            yield from (Started(one.settings) for one in pack.values())
            continue
        for outcome in outcomes:
            one = pack[outcome.id]
            file = record.path(out, one.settings)
            if outcome.record is not None and not file.exists():  # the nodes share no folder with this machine
                record.write(outcome.record, file)
            yield _note(one, out, outcome)


def _here(
    runs: Sequence[Planned], out: Path, workers: int | None, lanes: int | None, schedule: Schedule
) -> Iterator[Started | Done | Failed]:
    crew = _Crew(runs, out, workers or cores(), lanes, schedule)
    try:
        while crew.hire():
            for connection in wait(list(crew.at_work)):
                assert isinstance(connection, Connection)
                yield from crew.hear(connection)
    finally:
        crew.stop()


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class _Job:
    """Runs for one process, and the GPU it may see (None: all there are, as on the CPU)."""

    runs: list[Planned]
    gpu: str | None = None

    @property
    def on_gpu(self) -> bool:
        return self.runs[0].settings.device.startswith("cuda")


def _gpus() -> list[str]:
    """The GPUs here, as CUDA_VISIBLE_DEVICES names them; found without torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def _sharing(runs: Sequence[Planned]) -> list[list[Planned]]:
    """Those that share a training together, so that one process has them; the others each alone."""
    found: dict[str, list[Planned]] = {}
    for one in runs:
        found.setdefault(one.settings.training_id, []).append(one)
    return list(found.values())


def _packs(groups: Sequence[list[Planned]], size: int) -> list[list[Planned]]:
    """Groups put together to packs of ``size`` runs or a few more; none is divided."""
    packs: list[list[Planned]] = []
    for members in groups:
        if packs and len(packs[-1]) < size:
            packs[-1].extend(members)
        else:
            packs.append(list(members))
    return packs


def _by_gpu(runs: Sequence[Planned], gpus: Sequence[str]) -> list[_Job]:
    """A job for each GPU that is named; those of device ``cuda`` are dealt out to all GPUs there are."""
    named: dict[str, list[Planned]] = {}
    dealt: list[Planned] = []
    for one in runs:
        if one.settings.device == "cuda":
            dealt.append(one)
        elif one.settings.device.startswith("cuda"):
            named.setdefault(one.settings.device, []).append(one)
    if len(gpus) < 2:
        return [_Job(members) for members in ([dealt] if dealt else []) + list(named.values())]
    groups = _sharing(dealt)
    jobs = [
        _Job([one for members in own for one in members], gpu)
        for i, gpu in enumerate(gpus)
        if (own := groups[i :: len(gpus)])
    ]
    return jobs + [_Job(members) for members in named.values()]


class _Crew:
    """The processes at work, and the jobs that wait for one."""

    def __init__(self, runs: Sequence[Planned], out: Path, workers: int, lanes: int | None, schedule: Schedule) -> None:
        self.at_work: dict[Connection, _Worker] = {}
        self._out, self._workers, self._lanes, self._schedule = out, workers, lanes, schedule
        self._on_gpu = deque(_by_gpu(runs, _gpus()))
        self._on_cpu = deque(_Job(own) for own in _sharing(runs) if not own[0].settings.device.startswith("cuda"))

    def hire(self) -> bool:
        """A process for every job on a GPU, and for those on the CPU as many as are free; whether any is at work."""
        busy = sum(not worker.on_gpu for worker in self.at_work.values())
        free = min(self._workers - busy, len(self._on_cpu))
        for jobs, count in ((self._on_gpu, len(self._on_gpu)), (self._on_cpu, free)):
            for _ in range(count):
                worker = _Worker(self._out, self._lanes, jobs[0], self._schedule)
                self.at_work[worker.connection] = worker
                worker.give(jobs.popleft())
        return bool(self.at_work)

    def hear(self, connection: Connection) -> Iterator[Started | Done | Failed]:
        """What a process says next; one that has done its job gets another."""
        worker = self.at_work[connection]
        try:
            told: str | Outcome = connection.recv()  # the id of a run that starts, or what came of one
        except (EOFError, OSError):
            yield from self._mourn(worker)
            return
        if isinstance(told, str):
            worker.begun.add(told)
            yield Started(worker.has[told].settings)
            return
        yield _note(worker.has.pop(told.id), self._out, told)
        if worker.has:
            return
        if self._on_cpu and not worker.on_gpu:
            worker.give(self._on_cpu.popleft())
        else:
            worker.dismiss()
            del self.at_work[connection]

    def _mourn(self, worker: _Worker) -> Iterator[Done | Failed]:
        """It was killed, or out of memory: what it was at has failed, the rest of its job waits for another."""
        del self.at_work[worker.connection]
        worker.process.join()
        died = f"its process ended with exit code {worker.process.exitcode}"
        lost = [one for one in worker.has.values() if one.settings.id in worker.begun or not worker.begun]
        left = [one for one in worker.has.values() if one not in lost]
        if left:
            (self._on_gpu if worker.on_gpu else self._on_cpu).append(_Job(left, worker.gpu))
        yield from (_note(one, self._out, Outcome(one.settings.id, error=died)) for one in lost)

    def stop(self) -> None:
        for worker in self.at_work.values():
            worker.process.terminate()  # asks for a last checkpoint
        end = time.monotonic() + PATIENCE
        for worker in self.at_work.values():
            worker.process.join(max(0.0, end - time.monotonic()))
            worker.process.kill()


class _Worker:
    """A process of its own for jobs like the first, and the runs it has."""

    def __init__(self, out: Path, lanes: int | None, first: _Job, schedule: Schedule) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.gpu, self.on_gpu = first.gpu, first.on_gpu
        self.has: dict[str, Planned] = {}
        self.begun: set[str] = set()
        # Read there when torch is imported.
        wanted = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        with _environment(wanted if self.gpu is None else {**wanted, "CUDA_VISIBLE_DEVICES": self.gpu}):
            self.process: BaseProcess = context.Process(
                target=_work, args=(theirs, str(out), lanes, schedule), daemon=True
            )
            self.process.start()
        theirs.close()

    def give(self, job: _Job) -> None:
        self.has, self.begun = {one.settings.id: one for one in job.runs}, set()
        with suppress(OSError):  # it has died; that is seen when it is read from
            self.connection.send(job.runs)

    def dismiss(self) -> None:
        with suppress(OSError):  # it has died
            self.connection.send(None)
        self.process.join()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check_plan(runs: Sequence[Planned], out: Path) -> None:
    """An error for a run to be done whose stream, method, its own settings, or network are not there to begin with."""
    checked: set[str] = set()
    for one in runs:
        settings, own = one.settings, one.settings.user_parts
        what = json.dumps([settings.method, own, settings.options], sort_keys=True, default=str)
        if not (own or settings.options) or what in checked or record.path(out, settings).exists():
            continue
        from forgetless.experiments.build import build_method

        checked.add(what)
        build_method(settings)
        for kind, name in own.items():
            catalogue.load(kind, name)


def _say_warning(message: Warning | str) -> None:
    """One line, as the command says those of a single run."""
    sys.stderr.write(f"warning: {message}\n")


def _work(connection: Connection, out: str, lanes: int | None, schedule: Schedule) -> None:
    """A process: takes jobs, a run or a pack of lanes each, and says what becomes of every run."""
    from forgetless.experiments.checkpoint import Stop
    from forgetless.experiments.jobs import run_job

    catalogue.find_modules_here()
    warnings.showwarning = lambda message, *_: _say_warning(message)
    stop = Stop()
    stop.listen(interrupts=False)  # the parent sends SIGTERM
    threading.Thread(target=_outlive, args=(stop,), daemon=True).start()
    streams: dict[Any, Any] = {}  # those of the last jobs, which mostly are the next one's too

    def say_started(settings: Settings) -> None:
        connection.send(settings.id)

    try:
        while (job := connection.recv()) is not None:
            if len(streams) > 1:
                streams.clear()
            how = {"streams": streams, "on_start": say_started, "schedule": schedule, "stop": stop}
            for outcome in run_job(job, lanes, record.folder(out), **how):
                connection.send(outcome)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return  # the sweep was stopped


def _outlive(stop: Stop) -> None:
    """Where the parent was killed, and cannot say so: leave a checkpoint, and end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        stop.since = stop.since or time.monotonic()


def _read_error(file: Path) -> str:
    try:
        return str(json.loads(file.read_text())["error"])
    except (json.JSONDecodeError, KeyError, TypeError):
        return f"{file} is not readable"
