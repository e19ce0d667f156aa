"""``forgetless demo``: several methods on the digits."""

from pathlib import Path
from typing import Annotated

import typer

from forgetless.cli.options import Out, Quiet
from forgetless.cli.output import agreeing, print_note, print_rows
from forgetless.cli.progress import show_sweep
from forgetless.experiments import record
from forgetless.experiments.checks import check_runs
from forgetless.experiments.plan import expand_plan
from forgetless.experiments.storage import read_toml, write_whole
from forgetless.experiments.sweep import sweep
from forgetless.reports import page

PLAN = Path(__file__).with_name("demo.toml")


def demo(
    out: Out = Path("forgetless-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method.")] = 3,
    quiet: Quiet = False,
) -> None:
    """Train methods with and without FPF on the digits, in about a minute; print a table and write a page."""
    runs = expand_plan({**read_toml(PLAN), "seeds": seeds})
    check_runs(runs, out)
    if show_sweep(runs, out, sweep(runs, out)).failed:
        raise typer.Exit(1)
    records = agreeing([record.read_run(out, run.settings) for run in runs])
    print_rows(records)
    file = out / "report.html"
    links = {finished.id: f"{finished.id}/{record.NAME}" for finished in records}
    write_whole(page.html(records, "Digits in four views", links).encode(), file)
    print_note(f"page: {file}\nrecords: {out}")
