"""``forgetless run`` and ``forgetless resume``: one run."""

import os
import time
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import typer

import forgetless
from forgetless.cli import options
from forgetless.cli.completion import complete_runs, run_folders
from forgetless.cli.output import print_error, print_json, print_line, print_note, print_remark, print_rows
from forgetless.cli.progress import ProgressLine, remaining_time
from forgetless.config import catalogue
from forgetless.config.fields import Setting
from forgetless.config.units import si_prefix
from forgetless.experiments import record
from forgetless.experiments.finished import changed_code, find_current, set_aside
from forgetless.experiments.presets import recipe
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
    method: options.MethodOrRecipe = None,
    fpf: options.Fpf = False,
    k_fpf: options.KFpf = False,
    eager: Annotated[
        bool, options.flag("--eager", "Execution", "On a GPU, do not replay steps as CUDA graphs.")
    ] = False,
    force: options.Force = False,
    out: options.Out = Path("runs"),
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    **given: Any,
) -> None:
    """Train a METHOD on a STREAM. The method's own settings are options too, such as --alpha 0.2.

    Without a METHOD, the recommended recipe is trained: SGD with k-FPF-KD that tunes itself. Except for perceptrons,
    the loss covers only the current task's classes.
    """
    rest = context.args
    if method is not None and method.startswith("--"):  # an unknown option stands where the method would
        rest, method = [method, *rest], None
    chosen = options.parse_settings(given, SETTINGS, rest, method or recipe(stream)["method"][0], fpf, k_fpf)
    settings, sources = resolve(stream, method, chosen)
    extras = options.parse_options(given, EXTRAS)
    file = record.path(out, settings)
    if force:
        set_aside(out, settings)
    if not as_json:
        _print_settings(settings, sources)
    finished = find_current(out, settings)
    if finished is not None:
        version = finished.versions.get("forgetless", forgetless.__version__)
        other = "" if version == forgetless.__version__ else f" (version {version})"
        print_remark(f"this run is finished{other}; --force repeats it{' and logs it' * ('log' in extras)}")
    else:
        finished = _train(settings, sources, out, extras, quiet=as_json, eager=eager)
    _print_record(finished, file, as_json=as_json)


@options.with_options(EXTRAS)
def resume(
    run: Annotated[
        str, typer.Argument(help="Id of the run, or its beginning, or its folder.", autocompletion=complete_runs)
    ],
    out: options.Out = Path("runs"),
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    **given: Any,
) -> None:
    """Resume an interrupted run from its checkpoint, with the settings it was started with."""
    from forgetless.experiments import checkpoint

    extras = options.parse_options(given, EXTRAS)
    folder = _find_run(run, out).resolve()
    file = folder / record.CHECKPOINT
    record_file = folder / record.NAME
    if record_file.exists():
        print_remark(f"this run is finished: {record_file}")
        finished = record.read(record_file)
        if changed := changed_code(finished.code, Settings.from_dict(finished.settings)):
            print_error(f"warning: {' and '.join(changed)} changed since; `forgetless run` repeats the run")
        _print_record(finished, record_file, as_json=as_json)
        return
    if not file.exists():
        raise ValueError(f"there is no checkpoint in {folder}; a run writes it to <records>/<id>")
    _, about = checkpoint.load(file)
    settings = Settings.from_dict(about["settings"])
    if settings.id != folder.name:
        raise ValueError(f"{file} belongs to the run {settings.id}; its folder must have that name")
    finished = _train(settings, about["sources"], folder.parent, extras, quiet=as_json)
    _print_record(finished, record_file, as_json=as_json)


def _find_run(name: str, out: Path) -> Path:
    """Return the folder of a run from its id, from the beginning of its id, or from the path of its folder."""
    folders = run_folders(out)
    matching = [name] if name in folders else [run_id for run_id in folders if run_id.startswith(name)]
    if len(matching) == 1:
        return folders[matching[0]]
    if matching:
        raise ValueError(f"{len(matching)} runs in {out} begin with {name!r}: {', '.join(matching)}")
    path = Path(name)
    if not path.is_dir():
        known = f"; there are {', '.join(folders)}" if len(folders) <= 10 else ""
        hint = catalogue.nearest(name, folders) or (known if folders else "; it has no runs")
        raise ValueError(f"no run named {name!r} in {out}{hint}")
    return path


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
    with ProgressLine(quiet=quiet) as line:
        bar = line.add_task("reading data", total=None, eta="")
        start = time.monotonic()
        began = Began(0, 0)

        def show(event: Event) -> None:
            nonlocal began
            if isinstance(event, Began):
                began = event
                line.update(bar, total=event.steps, completed=event.step, description=f"task {event.task}")
                if event.step and not quiet:
                    print_remark(f"resuming at task {event.task}, step {event.step:,}")
            elif isinstance(event, Stepped):
                eta = remaining_time(start, event.step - began.step, began.steps - event.step)
                line.update(bar, completed=event.step, description=f"task {event.task}, epoch {event.epoch}", eta=eta)
            elif isinstance(event, TaskEnded) and not quiet:
                accuracy = mean(event.accuracies[: event.seen])
                unrepaired = settings.finetune and not settings.anytime and event.task < began.tasks
                when = ", before the repair at the end" if unrepaired else ""
                print_remark(f"after task {event.task}: {accuracy:.1f} % on the tasks so far{when}")

        return run_settings(settings, sources, out, show, **how)


def _print_settings(settings: Settings, sources: dict[str, str]) -> None:
    """Print the values that a run starts from, by their source."""
    by_source: dict[str, list[str]] = {}
    values = {**settings.to_dict(), **settings.options}
    usual = [name for name in ("network", "epochs", "batch", "lr", "buffer", "replay") if name not in sources]
    for name, source in {**sources, **dict.fromkeys(usual, "default")}.items():
        if name not in ("seed", "device") and (name, source) != ("repair", "given"):
            by_source.setdefault(source, []).append(f"{name} {values.get(name, getattr(settings, name, None))}")
    for source, names in by_source.items():
        print_remark(f"{source}: {', '.join(names)}")


def _print_record(finished: Record, file: Path, *, as_json: bool) -> None:
    """Print the result of a run."""
    if as_json:
        print_json(finished.to_dict())
        return
    print_rows([finished])
    if finished.before_finetuning:
        outcome = f"repaired: {', '.join(finished.chosen) or 'nothing'}"
        outcome += f" ({finished.share:.2%} of {si_prefix(sum(finished.parameters.values()))} parameters)"
        if finished.finetunings and not finished.finetunings[-1].get("kept", True):
            outcome = "it was undone, since it did not clearly lower the held-out loss"
        print_line(f"before the last repair: {mean(finished.before_finetuning):.1f} %; {outcome}")
    print_note(f"record: {file}")
