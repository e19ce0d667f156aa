"""Loggers: readers of the events of ``train`` that write to TensorBoard, Weights & Biases or MLflow.

    for event in tensorboard(train(...), "logs"):
        ...

Each logger passes every event on unchanged and writes its numbers at their training step. The log is opened with the
first event. It is closed after the last event, and also if the loop is left early or the training fails. The libraries
are extras, which only the logger that needs them imports.
"""

import time
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from forgetless.config.extras import load_extra
from forgetless.experiments.settings import Settings
from forgetless.training import metrics
from forgetless.training.events import Ended, EpochEnded, Event, Repaired, Result, TaskEnded

Log = Callable[[Mapping[str, float], int], None]  # writes numbers by name at a step
Close = Callable[[str], None]  # closes a log; the status is FINISHED, FAILED or KILLED


def numbers(event: Event) -> tuple[int, dict[str, float]]:
    """Return the training step of an event and its numbers by name; events that only show progress have none.

    Accuracies are in percent. ``accuracy/mean`` is the mean over the tasks so far, ``final/accuracy`` over all tasks.
    """
    if isinstance(event, EpochEnded):
        return event.step, {"loss": event.loss} | _prefixed("change", event.changes)
    if isinstance(event, Repaired):
        return event.step, {"finetuning/first_loss": event.first_loss, "finetuning/last_loss": event.last_loss}
    if isinstance(event, TaskEnded):
        task_il = _by_task("task_il_accuracy", event.task_il, event.seen)
        return event.step, _by_task("accuracy", event.accuracies, event.seen) | task_il
    if isinstance(event, Ended):
        return event.result.steps, _result_numbers(event.result)
    return 0, {}


def tensorboard(
    events: Iterable[Event], folder: Path | str, settings: Mapping[str, Any] | None = None
) -> Generator[Event]:
    """Return the events, and write them for TensorBoard.

    Args:
        events: The events of a run.
        folder: The folder of the log.
        settings: Settings of the run, which TensorBoard shows as text.
    """
    load_extra("tensorboard", "tensorboard", "loggers.tensorboard needs tensorboard")
    library = load_extra("torch.utils.tensorboard", "tensorboard", "loggers.tensorboard needs tensorboard")

    def opened() -> tuple[Log, Close]:
        writer = library.SummaryWriter(str(folder))
        if settings:
            rows = [f"| {name} | {value} |" for name, value in settings.items()]
            writer.add_text("settings", "\n".join(["| setting | value |", "| --- | --- |", *rows]))

        def log(values: Mapping[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        return log, lambda status: writer.close()

    return _logged(events, opened)


def wandb(
    events: Iterable[Event], project: str = "forgetless", settings: Mapping[str, Any] | None = None, **init: Any
) -> Generator[Event]:
    """Return the events, and log them to a run of Weights & Biases.

    Args:
        events: The events of a run.
        project: The project of the run.
        settings: Settings of the run, stored as its config.
        init: Further arguments of ``wandb.init``, such as ``mode="offline"``.
    """
    library = load_extra("wandb", "wandb", "loggers.wandb needs wandb")

    def opened() -> tuple[Log, Close]:
        try:
            run = library.init(project=project, config=dict(settings or {}), **init)
        except library.Error as error:  # no key or no network
            raise ValueError(f"wandb could not start: {error}") from error
        return (
            lambda values, step: run.log(dict(values), step=step),
            lambda status: run.finish(exit_code=int(status != "FINISHED")),
        )

    return _logged(events, opened)


def mlflow(
    events: Iterable[Event],
    experiment: str = "forgetless",
    settings: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    uri: str | None = None,
) -> Generator[Event]:
    """Return the events, and log them to a run of MLflow. Other active runs of the program are not touched.

    Args:
        events: The events of a run.
        experiment: The experiment of the run, which is created if necessary.
        settings: Settings of the run, stored as its parameters.
        name: The name of the run.
        uri: Where the runs are tracked. Default: MLflow's own setting, ``MLFLOW_TRACKING_URI``.
    """
    library = load_extra("mlflow", "mlflow", "loggers.mlflow needs mlflow")

    def opened() -> tuple[Log, Close]:
        try:
            client = library.MlflowClient(tracking_uri=uri)
            known = client.get_experiment_by_name(experiment)
            experiment_id = client.create_experiment(experiment) if known is None else known.experiment_id
            run = client.create_run(experiment_id, run_name=name).info.run_id
        except library.MlflowException as error:  # no such store or no server
            raise ValueError(f"mlflow could not start: {error}") from error
        for setting, value in (settings or {}).items():
            client.log_param(run, setting, value)

        def log(values: Mapping[str, float], step: int) -> None:
            now = int(1000 * time.time())
            client.log_batch(run, [library.entities.Metric(key, value, now, step) for key, value in values.items()])

        return log, lambda status: client.set_terminated(run, status)

    return _logged(events, opened)


LOGGERS: dict[str, Callable[..., Generator[Event]]] = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}


def for_run(name: str, settings: Settings, out: Path) -> Callable[[Iterable[Event]], Generator[Event]]:
    """Return the named logger for a run of the command line. TensorBoard and wandb write next to its record."""
    folder, title = out / settings.id, f"{settings.stream} {settings.label}, seed {settings.seed}"
    options: dict[str, Any] = {"folder": folder / "tensorboard"} if name == "tensorboard" else {"name": title}
    if name == "wandb":
        folder.mkdir(parents=True, exist_ok=True)
        options["dir"] = str(folder)
    return partial(LOGGERS[name], settings=settings.to_dict(), **options)


def _logged(events: Iterable[Event], opened: Callable[[], tuple[Log, Close]]) -> Generator[Event]:
    """Open a log, yield the events, write their numbers, and close the log."""
    log, close = opened()
    status = "FAILED"
    try:
        for event in events:
            step, values = numbers(event)
            if values:
                log(values, step)
            yield event
        status = "FINISHED"
    except (GeneratorExit, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        close(status)


def _result_numbers(result: Result) -> dict[str, float]:
    """Return the numbers of a whole run: final accuracies, S_g and choice of each group, and costs."""
    groups = result.profile.groups
    values = {
        "final/accuracy": metrics.accuracy(result.accuracy_matrix),
        "final/task_il_accuracy": metrics.accuracy(result.task_il_matrix),
        **{f"sensitivity/{group.name}": group.sensitivity for group in groups if group.sensitivity is not None},
        **_prefixed("flops", result.flops),
        **_prefixed("seconds", result.seconds),
    }
    forgetting = metrics.forgetting(result.accuracy_matrix)
    if forgetting is not None:
        values["final/forgetting"] = forgetting
    if result.before_finetuning is not None:
        values["final/accuracy_before_finetuning"] = sum(result.before_finetuning) / len(result.before_finetuning)
    if result.finetunings:
        values |= {f"chosen/{group.name}": float(group.chosen) for group in groups}
        values["chosen_share"] = result.profile.share
    return values


def _by_task(name: str, accuracies: tuple[float, ...], seen: int) -> dict[str, float]:
    """Return the accuracy of each task, and the mean over the tasks so far."""
    each = {f"{name}/task_{number}": value for number, value in enumerate(accuracies, start=1)}
    return each | {f"{name}/mean": sum(accuracies[:seen]) / seen}


def _prefixed(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return the values by name, with a prefix."""
    return {f"{prefix}/{name}": float(value) for name, value in values.items()}
