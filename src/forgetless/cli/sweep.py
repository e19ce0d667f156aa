"""``forgetless sweep``: the runs of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli.options import EXECUTION, Out, parse_execution, with_options
from forgetless.cli.output import SweepProgress, agreeing, print_by_stream, print_line
from forgetless.experiments import record
from forgetless.experiments.plan import check_plan, read_plan
from forgetless.experiments.sweep import sweep as execute_sweep


@with_options(EXECUTION)
def sweep(
    file: Annotated[Path, typer.Argument(help="TOML plan: settings, lists that expand into a grid, [[runs]] blocks.")],
    out: Out = Path("runs"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and exit.")] = False,
    **given: Any,
) -> None:
    """Execute every run of a plan. Finished runs are skipped; a failed run does not stop the others."""
    execution = parse_execution(given)
    runs = read_plan(file)
    if execution.on == "here":  # the nodes of a cluster may have other modules
        check_plan(runs, out)
    if dry_run:
        for settings in (run.settings for run in runs):
            print_line(f"{settings.id}  {settings.stream}  {settings.label}, seed {settings.seed}")
        count = sum(record.path(out, run.settings).exists() for run in runs)
        print_line(f"{len(runs)} runs, {count} of them finished")
        return
    with SweepProgress(len(runs)) as progress:
        for event in execute_sweep(runs, out, execution):
            progress.show(event)
    print_by_stream(agreeing([finished for run in runs if (finished := record.find(out, run.settings)) is not None]))
    print_line(f"{progress}; records: {out}")
    if progress.failed:
        raise typer.Exit(1)
