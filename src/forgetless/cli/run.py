"""``forgetless run`` and ``forgetless resume``: one run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer
from rich.progress import Progress

import forgetless
from forgetless.cli import options
from forgetless.cli.output import BAR, print_line, print_remark, print_rows, stderr
from forgetless.config.fields import Setting
from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve

SETTINGS = options.settings_except(())
EXTRAS = {name: options.EXECUTION[name] for name in ("checkpoint_seconds", "checkpoint_steps")} | {
    "log": Setting(
        "log", str | None, None, "Log the training to tensorboard, wandb or mlflow.",
        choices=("tensorboard", "wandb", "mlflow"), option="log",
    )
}  # fmt: skip


@options.with_options({**SETTINGS, **EXTRAS})
def run(
    context: typer.Context,
    stream: options.Stream,
    method: options.Method,
    fpf: options.Fpf = False,
    k_fpf: options.KFpf = False,
    eager: Annotated[bool, typer.Option("--eager", help="On a GPU, do not replay steps as CUDA graphs.")] = False,
    out: options.Out = Path("runs"),
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Train a METHOD on a STREAM. The method's own settings are options too, such as --alpha 0.2."""
    chosen = options.parse_settings(given, SETTINGS, context.args, method, fpf, k_fpf)
    settings, sources = resolve(stream, method, chosen)
    extras = options.parse_options(given, EXTRAS)
    file = record.path(out, settings)
    if not as_json:
        _print_settings(settings, sources)
    if file.exists():
        finished = record.read_run(out, settings)
        version = finished.versions.get("forgetless", forgetless.__version__)
        other = "" if version == forgetless.__version__ else f" (version {version})"
        print_remark(f"this run is finished{other}; remove {file} to repeat it")
    else:
        finished = _train(settings, sources, out, extras, quiet=as_json, eager=eager)
    _print_record(finished, file, as_json=as_json)


@options.with_options(EXTRAS)
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run, <records>/<id>.")],
    as_json: options.AsJson = False,
    **given: Any,
) -> None:
    """Resume an interrupted run from its checkpoint, with the settings it was started with."""
    from forgetless.experiments import checkpoint

    extras = options.parse_options(given, EXTRAS)
    file = run if run.name == checkpoint.NAME else run / checkpoint.NAME
    folder = file.parent.resolve()
    record_file = folder / record.NAME
    if record_file.exists():
        print_remark(f"this run is finished: {record_file}")
        _print_record(record.read(record_file), record_file, as_json=as_json)
        return
    if not file.exists():
        raise ValueError(f"there is no checkpoint {file}; a run writes them to <records>/<id>")
    _, about = checkpoint.load(file)
    settings = Settings.from_dict(about["settings"])
    if settings.id != folder.name:
        raise ValueError(f"{file} belongs to the run {settings.id}; its folder must have that name")
    finished = _train(settings, about["sources"], folder.parent, extras, quiet=as_json)
    _print_record(finished, record_file, as_json=as_json)


def _train(
    settings: Settings, sources: dict[str, str], out: Path, extras: dict[str, Any], *, quiet: bool, eager: bool = False
) -> Record:
    """Train with a progress bar, unless ``quiet``, and return the record."""
    import torch

    from forgetless.experiments import loggers
    from forgetless.experiments.checkpoint import Stop
    from forgetless.experiments.run import run as run_settings
    from forgetless.training.events import Began, Event, Stepped, TaskEnded

    small = settings.network == "mlp" and settings.batch + settings.replay <= 64
    if small and settings.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # more threads do not speed up small batches (docs/speed.md)
    stop = Stop()
    stop.listen()
    how: dict[str, Any] = {"eager": eager, "schedule": options.parse_execution(extras).schedule, "stop": stop}
    if "log" in extras:
        how["log"] = loggers.for_run(extras["log"], settings, out)
    with Progress(*BAR, console=stderr, transient=True, disable=quiet) as progress:
        bar = progress.add_task("reading data", total=None)

        def show(event: Event) -> None:
            if isinstance(event, Began):
                progress.update(bar, total=event.steps, description="task 1")
            elif isinstance(event, Stepped):
                progress.update(bar, completed=event.step, description=f"task {event.task}, epoch {event.epoch}")
            elif isinstance(event, TaskEnded) and not quiet:
                accuracy = mean(event.accuracies[: event.seen])
                progress.console.print(f"after task {event.task}: {accuracy:.1f} % on the tasks so far")

        return run_settings(settings, sources, out, show, **how)


def _print_settings(settings: Settings, sources: dict[str, str]) -> None:
    """Print the values that a run starts from, by their source."""
    by_source: dict[str, list[str]] = {}
    values = {**settings.to_dict(), **settings.options}
    usual = [name for name in ("network", "epochs", "batch", "lr", "buffer", "replay") if name not in sources]
    for name, source in {**sources, **dict.fromkeys(usual, "default")}.items():
        if name not in ("seed", "device", "repair"):
            by_source.setdefault(source, []).append(f"{name} {values.get(name, getattr(settings, name, None))}")
    for source, names in by_source.items():
        stderr.print(f"{source}: {', '.join(names)}")


def _print_record(finished: Record, file: Path, *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        sys.stdout.write(json.dumps(finished.to_dict()) + "\n")
        return
    print_rows([finished])
    if finished.before_finetuning:
        before, repaired = mean(finished.before_finetuning), ", ".join(finished.chosen) or "nothing"
        print_line(f"before the last repair: {before:.1f} %; repaired: {repaired}")
    print_line(f"record: {file}")
