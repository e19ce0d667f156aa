"""Runs on a Ray cluster: a pack of them is one task, with a core or a GPU of its own. Imports no torch; the tasks do.

A task whose node dies is tried again on another; what of it has a record by then is not done again. Records go into the
folder or object store all nodes see, and come back to the caller too, so that nothing is lost where they see none.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from forgetless.experiments import record
from forgetless.experiments.jobs import Outcome, Planned
from forgetless.experiments.storage import Schedule

RETRIES = 3  # of a task whose node or process dies

HINT = "start one with `ray start --head`, or name it in RAY_ADDRESS; on one machine none is needed: leave out --on ray"


@dataclass(frozen=True)
class Job:
    runs: list[Planned]
    gpu: bool


def share_out(
    jobs: Sequence[Job], out: str, lanes: int, schedule: Schedule
) -> Iterator[tuple[int, list[Outcome] | None]]:
    """The number of a job and None when it is handed out; its number and what became of its runs when it ends."""
    ray = _connect()
    pack = ray.remote(max_retries=RETRIES)(_pack)
    environment = {name: os.environ[name] for name in ("FORGETLESS_DATA",) if name in os.environ}
    place = out if "://" in out else str(record.folder(out).absolute())
    waiting = {kind: deque(n for n, job in enumerate(jobs) if job.gpu == (kind == "GPU")) for kind in ("GPU", "CPU")}
    running: dict[Any, int] = {}
    try:
        while any(waiting.values()) or running:
            resources = ray.cluster_resources()
            for kind, numbers in waiting.items():
                busy = sum(jobs[number].gpu == (kind == "GPU") for number in running.values())
                while numbers and busy < resources.get(kind, 0):
                    number, busy = numbers.popleft(), busy + 1
                    yield number, None
                    task = pack.options(**{f"num_{kind.lower()}s": 1})
                    running[task.remote(jobs[number].runs, place, lanes, schedule, environment)] = number
            if not running:
                kind = next(kind for kind, numbers in waiting.items() if numbers)
                raise ValueError(f"the Ray cluster has no {kind}, which the runs need; it has {resources}")
            (ended,), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(ended)
            try:
                outcomes = ray.get(ended)
            except ray.exceptions.RayError as error:
                # Without a trace its node or process died, again and again; with one, the task itself failed.
                trace = str(error) if isinstance(error, ray.exceptions.RayTaskError) else None
                message = f"{type(error).__name__}: {error}"
                outcomes = []
                for one in jobs[number].runs:
                    name, found = one.settings.id, record.find(record.folder(out), one.settings)
                    outcomes.append(Outcome(name, found) if found else Outcome(name, error=message, trace=trace))
            yield number, outcomes
    finally:
        for task in running:
            ray.cancel(task, force=True)


def _connect() -> Any:
    """ray, connected to the cluster that RAY_ADDRESS names or that runs on this machine."""
    try:
        import ray
    except ImportError:
        raise ImportError("on Ray needs ray: pip install 'forgetless[ray]'") from None
    if not ray.is_initialized():
        _knock(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise ValueError(f"no Ray cluster was found: {HINT} ({error})") from None
    return ray


def _knock(address: str) -> None:
    """An error if nothing listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(f"RAY_ADDRESS is {address!r}, where no Ray cluster answers ({error}): {HINT}") from None


def _pack(
    job: list[Planned],
    out: str,
    lanes: int,
    schedule: Schedule,
    environment: dict[str, str],
) -> list[Outcome]:
    """A task: runs one after the other, or in lanes on its GPU, from their checkpoints where another node left some."""
    os.environ.update(environment)
    from forgetless.experiments.jobs import run_job

    return list(run_job(job, lanes, record.folder(out), schedule=schedule))
