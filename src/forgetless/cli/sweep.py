"""``forgetless sweep``: the runs of a plan."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli.options import EXECUTION, Force, Out, Quiet, parse_execution, with_options
from forgetless.cli.output import agreeing, print_by_stream, print_line, print_note, print_table
from forgetless.cli.progress import show_sweep
from forgetless.experiments import record
from forgetless.experiments.checks import check_runs
from forgetless.experiments.finished import changed_code, set_aside
from forgetless.experiments.labels import labels
from forgetless.experiments.plan import read_plan
from forgetless.experiments.settings import Settings
from forgetless.experiments.sweep import sweep as execute_sweep


@with_options(EXECUTION)
def sweep(
    file: Annotated[
        Path, typer.Argument(help="TOML plan: settings, lists that expand into a grid, [\\[runs]] blocks.")
    ],
    out: Out = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs with the settings in which they differ, and exit.")
    ] = False,
    force: Force = False,
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Execute every run of a plan. Finished runs are skipped; a failed run does not stop the others."""
    execution = parse_execution(given)
    if force:
        execution = replace(execution, retry=True)
    runs = read_plan(file)
    if dry_run:
        names = labels([run.settings for run in runs])
        states = {run.settings.id: _state(run.settings, out) for run in runs}
        print_table(("id", "run", ""), ((run_id, name, states[run_id]) for run_id, name in names.items()))
        print_line(f"{len(runs)} runs, {list(states.values()).count('finished')} of them finished")
    if execution.on == "here":  # the nodes of a cluster may have other modules
        check_runs(runs, None if force else out)
    if dry_run:
        return
    if force:
        for run in runs:
            set_aside(out, run.settings)
    progress = show_sweep(runs, out, execute_sweep(runs, out, execution))
    print_by_stream(agreeing([finished for run in runs if (finished := record.find(out, run.settings)) is not None]))
    print_note(f"{progress}; records: {out}")
    if progress.failed:
        raise typer.Exit(1)


def _state(settings: Settings, out: Path) -> str:
    """Return whether a run is finished, and with the present code."""
    finished = record.find(out, settings)
    if finished is None:
        return ""
    return "finished; its code changed since" if changed_code(finished.code, settings) else "finished"
