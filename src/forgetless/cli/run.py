"""``forgetless run`` and ``forgetless resume``: one run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import forgetless
from forgetless.cli import options
from forgetless.cli.output import print_line, print_remark, print_rows, progress_bar, stderr
from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve

SETTINGS = options.settings_except(())
EXTRAS = {**options.CHECKPOINTS, "log": options.LOG}


@options.with_options(SETTINGS, EXTRAS)
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
    repair = options.parse_repair(fpf, k_fpf)
    chosen = options.parse_settings(given, SETTINGS, context.args, method, repair)
    settings, sources = resolve(stream, method, chosen)
    extras = options.parse_options(given, EXTRAS)
    file = record.path(out, settings)
    if not as_json:
        _print_settings(settings, sources)
    if file.exists():
        finished = record.of(out, settings)
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
    record_file = folder / "record.json"
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


def set_threads(settings: Settings) -> None:
    """Use one thread for the MLP's small batches, which more threads do not speed up (docs/speed.md)."""
    import torch

    small = settings.network == "mlp" and settings.batch + settings.replay <= 64
    if small and settings.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _train(
    settings: Settings,
    sources: dict[str, str],
    out: Path,
    extras: dict[str, Any],
    *,
    quiet: bool,
    eager: bool = False,
) -> Record:
    """Train with a progress bar, unless ``quiet``, and return the record."""
    from forgetless.experiments import loggers
    from forgetless.experiments.checkpoint import Stop
    from forgetless.experiments.run import run as run_settings
    from forgetless.training.events import Began, Event, Stepped, TaskEnded

    set_threads(settings)
    stop = Stop()
    stop.listen()
    how: dict[str, Any] = {"eager": eager, "schedule": options.parse_execution(extras).schedule, "stop": stop}
    if "log" in extras:
        how["log"] = loggers.for_run(extras["log"], settings, out)
    if quiet:
        return run_settings(settings, sources, out, **how)
    with progress_bar() as progress:
        bar = progress.add_task("reading data", total=None)

        def show(event: Event) -> None:
            if isinstance(event, Began):
                progress.update(bar, total=event.steps, description="task 1")
            elif isinstance(event, Stepped):
                progress.update(bar, completed=event.step, description=f"task {event.task}, epoch {event.epoch}")
            elif isinstance(event, TaskEnded):
                seen = event.accuracies[: event.seen]
                mean = sum(seen) / len(seen)
                progress.console.print(f"after task {event.task}: {mean:.1f} % on the tasks so far")

        return run_settings(settings, sources, out, show, **how)


def _print_settings(settings: Settings, sources: dict[str, str]) -> None:
    """Print the values that a run starts from, by their source."""
    by_source: dict[str, list[str]] = {}
    values = {**settings.to_dict(), **settings.options}
    for name, source in sources.items():
        if name not in ("seed", "device", "repair"):
            by_source.setdefault(source, []).append(f"{name} {values.get(name, getattr(settings, name, None))}")
    usual = ("network", "epochs", "batch", "lr", "buffer", "replay")
    if rest := [f"{name} {values[name]}" for name in usual if name not in sources]:
        by_source["default"] = rest
    for source, names in by_source.items():
        stderr.print(f"{source}: {', '.join(names)}")


def _print_record(finished: Record, file: Path, *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        sys.stdout.write(json.dumps(finished.to_dict()) + "\n")
        return
    print_rows([finished])
    if finished.before_finetuning:
        before = sum(finished.before_finetuning) / len(finished.before_finetuning)
        print_line(f"before the last repair: {before:.1f} %; repaired: {', '.join(finished.chosen) or 'nothing'}")
    print_line(f"record: {file}")
