"""Local processes that execute jobs. Imports no torch; the processes do.

Runs on the CPU are distributed over processes, one per core, each with one thread. Each GPU has one process, which
trains its runs in lanes. Runs that share a training stay in one process.
"""

import multiprocessing
import os
import subprocess
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunFailed, RunStarted, SweepEvent, group_by_training, run_job, start

PATIENCE = 30  # seconds for the processes to write checkpoints when a sweep is stopped


def execute(runs: Sequence[Planned], out: Path, execution: Execution) -> Iterator[SweepEvent]:
    """Execute runs in processes on this machine and yield what happens to each."""
    gpu_jobs = deque(assign_gpus(runs, visible_gpus()))
    cpu_jobs = deque(job for job in map(Job, group_by_training(runs)) if not job.on_gpu)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cpu_limit = execution.workers or cores
    workers: dict[Any, _Worker] = {}  # by their connections
    try:
        while gpu_jobs or cpu_jobs or workers:
            while gpu_jobs or (cpu_jobs and sum(not worker.job.on_gpu for worker in workers.values()) < cpu_limit):
                worker = _Worker(out, execution, (gpu_jobs or cpu_jobs).popleft())
                workers[worker.connection] = worker
            for connection in wait(list(workers)):
                worker = workers[connection]
                yield from worker.receive()
                if worker.runs and worker.alive:
                    continue
                if worker.alive and cpu_jobs and not worker.job.on_gpu:
                    worker.assign(cpu_jobs.popleft())
                    continue
                del workers[connection]
                worker.dismiss()
                if worker.runs:  # they had not started when the process died
                    left = Job(list(worker.runs.values()), worker.job.gpu)
                    (gpu_jobs if left.on_gpu else cpu_jobs).append(left)
    finally:
        for worker in workers.values():
            worker.process.terminate()  # asks for a last checkpoint
        deadline = time.monotonic() + PATIENCE
        for worker in workers.values():
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()


@dataclass(frozen=True)
class Job:
    """Runs for one process, and the GPU it may see (``None``: every GPU)."""

    runs: list[Planned]
    gpu: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Return whether the runs train on a GPU."""
        return self.runs[0].settings.device.startswith("cuda")


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


class _Worker:
    """A process, and those runs of its present job that have not ended."""

    def __init__(self, out: Path, execution: Execution, first: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, str(out), execution, first.gpu), daemon=True)
        self.process.start()
        self.alive = True
        theirs.close()
        self.assign(first)

    def assign(self, job: Job) -> None:
        """Send a job to the process."""
        self.job, self.runs = job, {run.settings.id: run for run in job.runs}
        self._started: set[str] = set()
        self._send(job.runs)

    def receive(self) -> Iterator[SweepEvent]:
        """Yield the next report of the process. If it has died, yield the runs that it had started as lost."""
        try:
            report: SweepEvent = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            self.alive = False
            error = f"its process ended with exit code {self.process.exitcode}"
            for settings_id in [name for name in self.runs if name in self._started or not self._started]:
                yield RunFailed(self.runs.pop(settings_id).settings, error, lost=True)
            return
        if isinstance(report, RunStarted):
            self._started.add(report.settings.id)
        else:
            del self.runs[report.settings.id]
        yield report

    def dismiss(self) -> None:
        """End the process."""
        self._send(None)
        self.process.join()

    def _send(self, runs: list[Planned] | None) -> None:
        with suppress(OSError):  # the process has died, which the next receive detects
            self.connection.send(runs)


def _work(connection: Connection, out: str, execution: Execution, gpu: str | None) -> None:
    """Execute jobs from the connection; report each run that starts, and the outcome of each that ends."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    import torch

    from forgetless.experiments.checkpoint import Stop

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"
    stop = Stop()
    stop.listen(interrupts=False)  # the parent sends SIGTERM

    def watch_parent() -> None:  # the runs stop, with a last checkpoint, if the parent is killed
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        stop.since = stop.since or time.monotonic()

    threading.Thread(target=watch_parent, daemon=True).start()
    folder = record.folder(out)
    streams: dict[Any, Any] = {}  # those of the last job, since the next job often needs the same
    options = {
        "streams": streams, "on_start": lambda settings: connection.send(start(settings, folder)),
        "schedule": execution.schedule, "stop": stop,
    }  # fmt: skip
    try:
        while (runs := connection.recv()) is not None:
            if len(streams) > 1:
                streams.clear()
            for outcome in run_job(runs, execution.lanes, folder, **options):
                connection.send(outcome)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        return  # the sweep was stopped
