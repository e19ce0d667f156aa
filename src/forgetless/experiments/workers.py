"""Local processes that execute jobs. Imports no torch; the processes do.

Runs on the CPU are distributed over processes, one per core, each with one thread. Each GPU has one process, which
trains its runs in lanes. Runs that share a training stay in one process.
"""

from __future__ import annotations

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

from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Outcome, Planned, RunStarted, group_by_training, run_job
from forgetless.experiments.settings import Settings

if TYPE_CHECKING:
    from forgetless.experiments.checkpoint import Stop

PATIENCE = 30  # seconds for the processes to write checkpoints when a sweep is stopped


def execute(runs: Sequence[Planned], out: Path, execution: Execution) -> Iterator[RunStarted | Outcome]:
    """Execute runs in processes on this machine and yield what happens to each."""
    gpu_jobs = assign_gpus(runs, visible_gpus())
    cpu_jobs = [Job(group) for group in group_by_training(runs) if not group[0].settings.device.startswith("cuda")]
    pool = _Pool(gpu_jobs, cpu_jobs, out, execution)
    try:
        while pool.start_workers():
            for connection in wait(list(pool.workers)):
                assert isinstance(connection, Connection)
                yield from pool.receive(connection)
    finally:
        pool.stop()


@dataclass(frozen=True)
class Job:
    """Runs for one process, and the GPU it may see (``None``: every GPU)."""

    runs: list[Planned]
    gpu: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Return whether the runs train on a GPU."""
        return self.runs[0].settings.device.startswith("cuda")


def available_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """Return the GPUs of this machine as ``CUDA_VISIBLE_DEVICES`` names them, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number, _ in enumerate(line for line in listed.splitlines() if line.startswith("GPU "))]


def assign_gpus(runs: Sequence[Planned], gpus: Sequence[str]) -> list[Job]:
    """Return one job per GPU for the runs on a GPU.

    Runs on the device ``cuda`` are distributed over all GPUs. Runs on a named device stay on that device.
    """
    named: dict[str, list[Planned]] = {}
    for run in runs:
        if run.settings.device.startswith("cuda"):
            named.setdefault(run.settings.device, []).append(run)
    if len(gpus) < 2:
        return [Job(members) for members in named.values()]
    groups = group_by_training(named.pop("cuda", []))
    shares = {gpu: groups[number :: len(gpus)] for number, gpu in enumerate(gpus)}
    jobs = [Job([run for group in share for run in group], gpu) for gpu, share in shares.items() if share]
    return jobs + [Job(members) for members in named.values()]


class _Pool:
    """The processes at work, and the jobs that wait for one."""

    def __init__(self, gpu_jobs: Sequence[Job], cpu_jobs: Sequence[Job], out: Path, execution: Execution) -> None:
        self.workers: dict[Connection, _Worker] = {}
        self._gpu_jobs, self._cpu_jobs = deque(gpu_jobs), deque(cpu_jobs)
        self._out, self._execution = out, execution
        self._cpu_limit = execution.workers or available_cores()

    def start_workers(self) -> bool:
        """Start a process for every GPU job, and for CPU jobs up to the limit. Return whether any process is busy."""
        free = self._cpu_limit - sum(not worker.on_gpu for worker in self.workers.values())
        ready = [self._gpu_jobs.popleft() for _ in range(len(self._gpu_jobs))]
        ready += [self._cpu_jobs.popleft() for _ in range(min(free, len(self._cpu_jobs)))]
        for job in ready:
            worker = _Worker(self._out, self._execution, job)
            self.workers[worker.connection] = worker
            worker.assign(job)
        return bool(self.workers)

    def receive(self, connection: Connection) -> Iterator[RunStarted | Outcome]:
        """Yield the next report of a process. A process that has finished its job receives another one."""
        worker = self.workers[connection]
        try:
            report: str | Outcome = connection.recv()
        except (EOFError, OSError):
            yield from self._replace(worker)
            return
        if isinstance(report, str):
            worker.started.add(report)
            yield RunStarted(worker.runs[report].settings)
            return
        del worker.runs[report.id]
        yield report
        if worker.runs:
            return
        if self._cpu_jobs and not worker.on_gpu:
            worker.assign(self._cpu_jobs.popleft())
        else:
            worker.dismiss()
            del self.workers[connection]

    def _replace(self, worker: _Worker) -> Iterator[Outcome]:
        """Yield the runs that a dead process had started as lost, and queue the rest of its job again."""
        del self.workers[worker.connection]
        worker.process.join()
        error = f"its process ended with exit code {worker.process.exitcode}"
        lost = [settings_id for settings_id in worker.runs if settings_id in worker.started or not worker.started]
        if left := [run for settings_id, run in worker.runs.items() if settings_id not in lost]:
            (self._gpu_jobs if worker.on_gpu else self._cpu_jobs).append(Job(left, worker.gpu))
        yield from (Outcome(settings_id, error=error) for settings_id in lost)

    def stop(self) -> None:
        """Ask every process for a last checkpoint, and kill those that take too long."""
        for worker in self.workers.values():
            worker.process.terminate()
        deadline = time.monotonic() + PATIENCE
        for worker in self.workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()


class _Worker:
    """A process for jobs like ``first``, and the runs of its present job."""

    def __init__(self, out: Path, execution: Execution, first: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.gpu, self.on_gpu = first.gpu, first.on_gpu
        self.runs: dict[str, Planned] = {}
        self.started: set[str] = set()
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}  # read when torch is imported
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpu
        with _environment(environment):
            self.process: BaseProcess = context.Process(target=_work, args=(theirs, str(out), execution), daemon=True)
            self.process.start()
        theirs.close()

    def assign(self, job: Job) -> None:
        """Send a job to the process."""
        self.runs, self.started = {run.settings.id: run for run in job.runs}, set()
        with suppress(OSError):  # the process has died, which the next receive detects
            self.connection.send(job.runs)

    def dismiss(self) -> None:
        """End the process."""
        with suppress(OSError):  # the process has died
            self.connection.send(None)
        self.process.join()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            del os.environ[name]
        os.environ.update(before)


def _work(connection: Connection, out: str, execution: Execution) -> None:
    """Execute jobs from the connection; send the id of each run that starts and the outcome of each that ends."""
    from forgetless.experiments.checkpoint import Stop

    warnings.showwarning = lambda message, *_: _show_warning(message)
    stop = Stop()
    stop.listen(interrupts=False)  # the parent sends SIGTERM
    threading.Thread(target=_watch_parent, args=(stop,), daemon=True).start()
    streams: dict[Any, Any] = {}  # those of the last job, since the next job often needs the same

    def report_start(settings: Settings) -> None:
        connection.send(settings.id)

    options = {"streams": streams, "on_start": report_start, "schedule": execution.schedule, "stop": stop}
    try:
        while (runs := connection.recv()) is not None:
            if len(streams) > 1:
                streams.clear()
            for outcome in run_job(runs, execution.lanes, record.folder(out), **options):
                connection.send(outcome)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return  # the sweep was stopped


def _show_warning(message: Warning | str) -> None:
    """Write a warning as one line, without its place in the library."""
    sys.stderr.write(f"warning: {message}\n")


def _watch_parent(stop: Stop) -> None:
    """Stop the runs, with a last checkpoint, if the parent process is killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        stop.since = stop.since or time.monotonic()
