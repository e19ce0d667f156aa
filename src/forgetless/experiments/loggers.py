"""What a run tells, passed on to TensorBoard, Weights & Biases or MLflow: readers of the events of ``train``.

    for event in tensorboard(train(...), "logs"):
        ...

Each takes the events, gives every one on as it is, and writes the numbers it holds (``numbers``) at their training
step. What it writes to is opened with the first event and closed with the last, and also when the loop is left early
or the training fails. The libraries are extras, imported only by the call that needs them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from forgetless.training import metrics as scores
from forgetless.training.events import Ended, EpochEnded, Event, Repaired, Result, TaskEnded

Log = Callable[[Mapping[str, float], int], None]  # numbers by name, and the step they belong to


def numbers(event: Event) -> tuple[int, dict[str, float]]:
    """The training step an event belongs to, and its numbers by name; none for events that only tell progress.

    Accuracies are in percent. ``accuracy/mean`` is the mean over the tasks so far, ``final/accuracy`` over all.
    """
    if isinstance(event, EpochEnded):
        return event.step, {"loss": event.loss} | _named("change", event.changes)
    if isinstance(event, Repaired):
        return event.step, {"finetuning/first_loss": event.first_loss, "finetuning/last_loss": event.last_loss}
    if isinstance(event, TaskEnded):
        return event.step, {
            **_by_task("accuracy", event.accuracies, event.seen),
            **_by_task("task_il_accuracy", event.task_il, event.seen),
        }
    if isinstance(event, Ended):
        return event.result.steps, _of_result(event.result)
    return 0, {}


def tensorboard(
    events: Iterable[Event], folder: Path | str, settings: Mapping[str, Any] | None = None
) -> Generator[Event]:
    """The events, also written for TensorBoard into ``folder``; ``settings`` are shown there as text."""
    _library("tensorboard", "tensorboard")
    library = _library("torch.utils.tensorboard", "tensorboard")

    @contextmanager
    def opened() -> Iterator[Log]:
        writer = library.SummaryWriter(str(folder))
        try:
            if settings:
                rows = [f"| {name} | {value} |" for name, value in settings.items()]
                writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]))

            def log(values: Mapping[str, float], step: int) -> None:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

            yield log
        finally:
            writer.close()

    return _passed_on(events, opened())


def wandb(
    events: Iterable[Event], project: str = "forgetless", settings: Mapping[str, Any] | None = None, **init: Any
) -> Generator[Event]:
    """The events, also logged to a run of Weights & Biases; ``init`` goes to ``wandb.init``, ``mode="offline"`` say."""
    library = _library("wandb", "wandb")

    @contextmanager
    def opened() -> Iterator[Log]:
        try:
            run = library.init(project=project, config=dict(settings or {}), **init)
        except Exception as error:  # its own errors, which are of several kinds: no key, no network
            raise ValueError(f"wandb could not begin: {error}") from error
        code = 1  # unless the training ends
        try:
            yield lambda values, step: run.log(dict(values), step=step)
            code = 0
        finally:
            run.finish(exit_code=code)

    return _passed_on(events, opened())


def mlflow(
    events: Iterable[Event],
    experiment: str = "forgetless",
    settings: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    uri: str | None = None,
) -> Generator[Event]:
    """The events, also logged to a run of MLflow, called ``name``, with ``settings`` as its parameters.

    ``uri`` says where the runs are tracked; without it MLflow's own setting does (``MLFLOW_TRACKING_URI``). Runs that
    are active elsewhere in the program are left alone.
    """
    library = _library("mlflow", "mlflow")

    @contextmanager
    def opened() -> Iterator[Log]:
        try:
            client = library.MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(experiment)
            number = client.create_experiment(experiment) if found is None else found.experiment_id
            run = client.create_run(number, run_name=name).info.run_id
        except Exception as error:  # its own errors, which are of several kinds: no such store, no server
            raise ValueError(f"mlflow could not begin: {error}") from error
        status = "FAILED"
        try:
            for setting, value in (settings or {}).items():
                client.log_param(run, setting, value)

            def log(values: Mapping[str, float], step: int) -> None:
                now = int(1000 * time.time())
                client.log_batch(run, [library.entities.Metric(key, value, now, step) for key, value in values.items()])

            yield log
            status = "FINISHED"
        except (GeneratorExit, KeyboardInterrupt):
            status = "KILLED"
            raise
        finally:
            client.set_terminated(run, status)

    return _passed_on(events, opened())


LOGGERS: dict[str, Callable[..., Generator[Event]]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


def _passed_on(events: Iterable[Event], sink: AbstractContextManager[Log]) -> Generator[Event]:
    with sink as log:
        for event in events:
            step, values = numbers(event)
            if values:
                log(values, step)
            yield event


def _library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"loggers.{extra} needs a library that is missing ({error}): pip install 'forgetless[{extra}]'"
        ) from None


def _of_result(result: Result) -> dict[str, float]:
    """Of the whole run: how well it ended, what each group's S_g is and whether it was chosen, what it cost."""
    profile = result.profile
    scored = {group.name: group.sensitivity for group in profile.groups if group.sensitivity is not None}
    found = {
        "final/accuracy": scores.accuracy(result.accuracy_matrix),
        "final/task_il_accuracy": scores.accuracy(result.task_il_matrix),
        **_named("sensitivity", scored),
        **_named("flops", result.flops),
        **_named("seconds", result.seconds),
    }
    forgetting = scores.forgetting(result.accuracy_matrix)
    if forgetting is not None:
        found["final/forgetting"] = forgetting
    if result.before_finetuning is not None:
        found["final/accuracy_before_finetuning"] = _mean(result.before_finetuning)
    if result.finetunings:
        chosen = {group.name: float(group.chosen) for group in profile.groups}
        found |= {**_named("chosen", chosen), "chosen_share": profile.share}
    return found


def _by_task(name: str, accuracies: tuple[float, ...], seen: int) -> dict[str, float]:
    each = {f"{name}/task_{number}": value for number, value in enumerate(accuracies, start=1)}
    return each | {f"{name}/mean": _mean(accuracies[:seen])}


def _named(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
