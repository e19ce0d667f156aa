"""``forgetless reproduce``: the tables and figures of the paper."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli.completion import complete_from, complete_names
from forgetless.cli.options import EXECUTION, Formats, Out, Quiet, parse_execution, with_options
from forgetless.cli.output import agreeing, print_line, print_mixed_versions, print_note, print_table
from forgetless.cli.progress import show_sweep
from forgetless.config import catalogue
from forgetless.config.units import quantity, si_prefix
from forgetless.experiments import record
from forgetless.experiments.checks import check_runs
from forgetless.experiments.execution import Execution
from forgetless.experiments.jobs import Planned, RunDone, RunStarted, SweepEvent
from forgetless.experiments.sweep import RETRY_HINT
from forgetless.experiments.sweep import sweep as execute_sweep
from forgetless.paper import reproduce as paper
from forgetless.paper.studies import ITEMS, notes
from forgetless.reports import charts

COSTS = """A step of ResNet-18 on 32×32 images takes about 1 ms on an H200 in lanes (docs/speed.md), so a million steps
take about 17 minutes. A step of the MLP takes about 0.4 ms on a CPU core. --quick takes minutes."""


@with_options(EXECUTION)
def reproduce(
    what: Annotated[
        str | None,
        typer.Argument(
            help="A table or figure; --list shows their names.",
            autocompletion=complete_from({name: item.summary for name, item in ITEMS.items()}),
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the tables and figures and what each costs.")] = False,
    stream: Annotated[
        str | None,
        typer.Option(help="Only this stream; with --quick, any stream.", autocompletion=complete_names("stream")),
    ] = None,
    buffer: Annotated[int | None, typer.Option(help="Only this buffer size.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows of a table, such as er,fpf+er.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per row; default: 5, with --quick 2.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The digits (or --stream), few seeds, few points.")] = False,
    device: Annotated[str, typer.Option(rich_help_panel="Execution", help="cpu or cuda.")] = "cpu",
    out: Out = Path("runs"),
    figures: Annotated[Path, typer.Option(rich_help_panel="Output", help="Folder of the figures.")] = Path("figures"),
    formats: Formats = "png",
    quiet: Quiet = False,
    **given: Any,
) -> None:
    """Reproduce a table or figure of the paper: the paper's value, ours, and the difference in standard errors."""
    options = paper.Options(stream, buffer, tuple(rows.split(",")) if rows else (), seeds, quick, device)
    if list_all:
        _list_items(options)
        return
    if what is None:
        raise ValueError(f"name what to reproduce: one of {', '.join(ITEMS)}; --list shows what each costs")
    if what not in ITEMS:
        raise ValueError(catalogue.unknown("table or figure", what, ITEMS))
    item = ITEMS[what]
    item.check(what, options)
    execution = parse_execution(given)
    if item.filters and execution != Execution():
        unused = ", ".join(f"--{name.replace('_', '-')}" for name in EXECUTION)
        raise ValueError(f"{what} is one run in this process, without checkpoints: remove {unused}")
    lines = item.lines(options)
    runs = paper.runs(lines)
    charts.check_formats(formats.split(","))
    remarks = notes(options, lines)
    for remark in remarks:
        print_note(remark)
    if execution.on == "here":
        check_runs(runs, out)
    events = _watch_filters(runs, out) if item.filters else execute_sweep(runs, out, execution)
    progress = show_sweep(runs, out, events)
    records = agreeing([found for run in runs if (found := record.find(out, run.settings))])
    if not records:
        raise ValueError(f"all runs failed; {RETRY_HINT}")
    measured = paper.measure(lines, records)
    _print_comparisons(measured)
    print_mixed_versions(records)
    findings = list(item.judge(measured))
    for finding in findings:
        print_line(str(finding))
    chosen = [str(value) for value in (stream, buffer, *options.rows, seeds and f"seeds-{seeds}") if value]
    file = out / f"{'-'.join(['reproduce', what, *chosen])}{'-quick' * quick}.json"
    record.write_json(paper.to_dict(what, measured, findings, remarks), file)
    _save_figures(what, chosen, measured, figures, formats.split(","))
    print_note(f"{progress}; result: {file}")
    if progress.failed:
        raise typer.Exit(1)


def _watch_filters(runs: list[Planned], out: Path) -> Iterator[SweepEvent]:
    """Train in this process, with every filter of the network recorded."""
    from forgetless.paper import filters

    for run in runs:
        yield RunStarted(run.settings)
        filters.measure_filters(run, out)
        yield RunDone(run.settings)


def _print_comparisons(measured: list[paper.Measured]) -> None:
    """Print the rows of each stream."""
    for stream in dict.fromkeys(entry.line.stream for entry in measured):
        print_line(stream)
        _print_comparison([entry for entry in measured if entry.line.stream == stream])


def _print_comparison(measured: list[paper.Measured]) -> None:
    """Print the rows of one stream, compared with the paper where it has numbers."""
    compared = any(entry.line.target for entry in measured)
    headings = ["", "paper", "ours", "difference", "in s.e.", "cost"] if compared else ["", "ours", "cost"]
    lines = []
    for entry in measured:
        target, errors, metric = entry.line.target, entry.standard_errors, entry.line.metric
        cells = {"": entry.line.name, "ours": entry.shown, "cost": quantity(entry.tflops * 1e12, "FLOPs")}
        if metric != "accuracy":
            cells[""] += f" ({metric.replace('_', ' ')})"
        if target is not None:
            cells["paper"] = f"{target.mean:.2f}" + (f" ± {target.std:.2f}" if target.std else "")
            cells["difference"] = f"{entry.difference:+.2f}"
            cells["in s.e."] = "" if errors is None else f"{errors:+.1f}"
        lines.append([cells.get(heading, "") for heading in headings])
    print_table(headings, lines, numbers=True)


def _save_figures(
    what: str, chosen: list[str], measured: list[paper.Measured], folder: Path, formats: list[str]
) -> None:
    """Save the figures of an item. Their names hold the options that were chosen, each once."""
    for name, figure in ITEMS[what].draw(measured).items():
        stem = "-".join([what, *(word for word in chosen if f"-{word}-" not in f"-{name}-"), name])
        for file in charts.save(figure, folder, stem.replace(":", "-"), formats):
            print_note(f"figure: {file}")


def _list_items(options: paper.Options) -> None:
    """List the items that have what the options ask for, with their runs and steps."""
    if options.stream is not None:
        catalogue.check_name("stream", options.stream)
    lines = []
    for name, item in ITEMS.items():
        try:
            item.check(name, options)
            runs = paper.runs(item.lines(options))
        except ValueError:  # it has no such stream, buffer or rows
            continue
        known = all(run.settings.stream in paper.IMAGES for run in runs)
        steps = si_prefix(sum(paper.training_steps(run.settings) for run in runs)) if known else "–"
        lines.append((name, str(len(runs)), steps, f"{item.summary} ({item.where})"))
    print_table(("name", "runs", "steps", "what"), lines)
    print_line(COSTS)
