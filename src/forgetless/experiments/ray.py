"""Runs on a Ray cluster: each job is one task with one core or one GPU. Imports no torch; the tasks do.

A task whose node dies is repeated on another node, where its finished runs are skipped. Records go to the folder or
object store that all nodes share. They are also returned to the caller, so none is lost if the nodes share nothing.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forgetless.config.extras import load_extra
from forgetless.experiments import jobs, record
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunFailed, SweepEvent
from forgetless.experiments.storage import Schedule

RETRIES = 3  # of a task whose node or process dies

HINT = "start one with `ray start --head`, or name it in RAY_ADDRESS; a single machine needs no cluster: omit --on ray"


def execute(runs: Sequence[Planned], out: Path, execution: Execution) -> Iterator[SweepEvent]:
    """Execute runs as tasks on a Ray cluster and yield what happens to each."""
    for run in runs:
        if run.settings.device not in ("cpu", "cuda"):
            raise ValueError(f"device is {run.settings.device!r}; on Ray it must be cpu or cuda: Ray selects the GPU")
    lanes = execution.lanes or jobs.LANES
    gpu_groups = jobs.group_by_training([run for run in runs if run.settings.device == "cuda"])
    cpu_groups = jobs.group_by_training([run for run in runs if run.settings.device == "cpu"])
    waiting = {"GPU": deque(pack_groups(gpu_groups, lanes)), "CPU": deque(cpu_groups)}
    running: dict[Any, tuple[str, list[Planned]]] = {}  # kind and runs of each task
    ray = _connect()
    task = ray.remote(max_retries=RETRIES)(_run_task)
    environment = {name: os.environ[name] for name in ("FORGETLESS_DATA",) if name in os.environ}
    place = str(out) if "://" in str(out) else str(out.absolute())
    try:
        while any(waiting.values()) or running:
            resources = ray.cluster_resources()
            for kind, queue in waiting.items():
                busy = sum(other == kind for other, _ in running.values())
                while queue and busy < resources.get(kind, 0):
                    members, busy = queue.popleft(), busy + 1
                    yield from (jobs.start(run.settings, out) for run in members)
                    submitted = task.options(**{f"num_{kind.lower()}s": 1})
                    reference = submitted.remote(members, place, lanes, execution.schedule, environment)
                    running[reference] = kind, members
            if not running:
                missing = next(kind for kind, queue in waiting.items() if queue)
                raise ValueError(f"the Ray cluster has no {missing}, which the runs need; it has {resources}")
            (ended,), _ = ray.wait(list(running), num_returns=1)
            _, members = running.pop(ended)
            try:
                yield from ray.get(ended)
            except ray.exceptions.RayError as error:
                # Any other error than that of the task means that the node or process died repeatedly.
                lost = not isinstance(error, ray.exceptions.RayTaskError)
                message = f"{type(error).__name__}: {error}"
                for settings in (run.settings for run in members):  # those with a record are done
                    written = record.find(out, settings)
                    failed = RunFailed(settings, message, lost=lost, trace=str(error))
                    yield RunDone(settings, record=written) if written else failed
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def pack_groups(groups: Sequence[list[Planned]], size: int) -> list[list[Planned]]:
    """Return the groups merged into packs of at least ``size`` runs where possible; no group is divided."""
    packs: list[list[Planned]] = []
    for members in groups:
        if packs and len(packs[-1]) < size:
            packs[-1].extend(members)
        else:
            packs.append(list(members))
    return packs


def _connect() -> Any:
    """Return the module ray, connected to the cluster in RAY_ADDRESS or on this machine."""
    ray = load_extra("ray", "ray", "--on ray needs ray")
    if not ray.is_initialized():
        _check_address(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise ValueError(f"there is no Ray cluster: {HINT} ({error})") from None
    return ray


def _check_address(address: str) -> None:
    """Raise ``ValueError`` if nothing listens at host:port. Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ValueError(f"RAY_ADDRESS is {address!r}, where no Ray cluster answers ({error}): {HINT}") from None


def _run_task(
    runs: Sequence[Planned], out: str, lanes: int, schedule: Schedule, environment: dict[str, str]
) -> list[RunDone | RunFailed]:
    """Execute a job as a Ray task, from the checkpoints that another node may have left."""
    os.environ.update(environment)
    return list(jobs.run_job(runs, lanes, record.folder(out), schedule=schedule))
