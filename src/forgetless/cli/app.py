"""The command line. torch is imported only by commands that train, so that help and lists appear at once."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import forgetless
from forgetless.cli.options import parse_settings, with_settings
from forgetless.config import catalogue
from forgetless.config.fields import check_value
from forgetless.config.tracebacks import blamed_frames, user_frames
from forgetless.experiments import record
from forgetless.experiments.settings import Settings, method_settings, resolve, run_settings
from forgetless.experiments.storage import USUAL, Schedule, write_whole
from forgetless.reports import page
from forgetless.reports import rows as report

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Finds which parts of a network forget when its data shifts, and repairs only those.",
)
data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The data sets: list, fetch, check.")
app.add_typer(data, name="data")

screen = Console(markup=False, emoji=False)  # names of folders are no markup
notes = Console(stderr=True, markup=False, emoji=False)
INTERRUPTED = 130
LOGGERS = ("tensorboard", "wandb", "mlflow")
WrongCall: Any = typer.BadParameter.__mro__[2]  # click's ClickException, which newer versions of typer bring themselves

Out = Annotated[
    Path, typer.Option(parser=record.folder, metavar="FOLDER", help="Folder of the records, or an object store's URL.")
]
On = Annotated[str, typer.Option(help="here: this machine; ray: a Ray cluster, which RAY_ADDRESS names.")]
CheckpointSeconds = Annotated[
    float, typer.Option(help="Between two checkpoints, from which a run goes on; 0: none by time.")
]
CheckpointSteps = Annotated[int, typer.Option(help="Likewise, in steps of training; 0: none by steps.")]
Workers = Annotated[int | None, typer.Option(help="Processes for runs on the CPU; default: one a core.")]
Lanes = Annotated[int | None, typer.Option(help="Runs side by side on a GPU; default: 8.")]
Log = Annotated[str | None, typer.Option(help="Log as it trains: tensorboard, wandb or mlflow.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON line at the end, nothing else.")]
Retry = Annotated[bool, typer.Option("--retry", help="Also do what failed in an earlier call.")]


def _version(wanted: bool) -> None:
    if wanted:
        screen.print(f"forgetless {forgetless.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _all(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it, and end.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_() -> None:
    """Streams, methods and networks."""
    for kind, table in catalogue.TABLES.items():
        shown = Table(title=f"{kind}s", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, entry in table.items():
            shown.add_row(name, entry.summary)
        screen.print(shown)
    screen.print("A path to an object of your own, package.module:object, goes wherever a name does.")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
@with_settings
def run(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(help=run_settings()["stream"].help)],
    method: Annotated[str, typer.Argument(help=run_settings()["method"].help)],
    fpf: Annotated[bool, typer.Option("--fpf", help="Finetune the sensitive groups once, at the end.")] = False,
    k_fpf: Annotated[bool, typer.Option("--k-fpf", help="Also finetune them every so many steps.")] = False,
    eager: Annotated[bool, typer.Option("--eager", help="On a GPU, call every step rather than replay it.")] = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    checkpoint_steps: CheckpointSteps = 0,
    out: Out = Path("runs"),
    log: Log = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """Train a METHOD on a STREAM. A method's own settings are options too: --alpha 0.2."""
    repair = _repair(fpf, k_fpf)
    chosen = parse_settings(given) | _own(context.args, method) | ({"repair": repair} if repair != "none" else {})
    settings, sources = resolve(stream, method, chosen)
    _check_log(log)
    file = record.path(out, settings)
    if not as_json:
        _say_settings(settings, sources)
    if file.exists():
        found = record.of(out, settings)
        made_by = found.versions.get("forgetless", forgetless.__version__)
        by = "" if made_by == forgetless.__version__ else f", made by version {made_by}; to do it anew, remove it"
        notes.print(f"this run has a record already, {file}: it is not done again{by}", soft_wrap=True)
    else:
        schedule = _schedule(checkpoint_steps, checkpoint_seconds)
        found = _train(settings, sources, out, schedule, quiet=as_json, eager=eager, log=log)
    _tell(found, file, as_json=as_json)


def _tell(found: record.Record, file: Path, *, as_json: bool) -> None:
    """What came out of a run."""
    if as_json:
        sys.stdout.write(json.dumps(found.to_dict()) + "\n")
        return
    _print_rows([found])
    if found.before_finetuning:
        before = sum(found.before_finetuning) / len(found.before_finetuning)
        chosen = ", ".join(found.chosen) or "nothing"
        screen.print(f"before the last finetuning: {before:.1f} %; finetuned: {chosen}")
    _say(f"record: {file}")


def _check_log(log: str | None) -> None:
    if log is not None:
        check_value("log", log, str, choices=LOGGERS)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Folder of the run, <records>/<id>.")],
    checkpoint_seconds: CheckpointSeconds = 60.0,
    checkpoint_steps: CheckpointSteps = 0,
    log: Log = None,
    as_json: AsJson = False,
) -> None:
    """Go on with an interrupted run from its checkpoint, with the settings of the command that began it."""
    from forgetless.experiments import checkpoint

    _check_log(log)
    file = run if run.name == checkpoint.NAME else run / checkpoint.NAME
    folder = file.parent.resolve()
    ended = folder / "record.json"
    if ended.exists():
        made = record.read(ended)
        notes.print(f"this run has ended, and has a record already: {ended}", soft_wrap=True)
        _tell(made, ended, as_json=as_json)
        return
    if not file.exists():
        raise ValueError(f"there is no checkpoint {file}: a run leaves one every so often, in <records>/<id>")
    _, about = checkpoint.load(file)
    settings = Settings.from_dict(about["settings"])
    if settings.id != folder.name:
        raise ValueError(f"{file} is of the run {settings.id}; its folder must have that name")
    schedule = _schedule(checkpoint_steps, checkpoint_seconds)
    found = _train(settings, about["sources"], folder.parent, schedule, quiet=as_json, eager=False, log=log)
    _tell(found, ended, as_json=as_json)


@app.command()
def demo(
    out: Out = Path("forgetless-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method.")] = 3,
) -> None:
    """Digits in five tasks: several methods with and without FPF, in under a minute; a table and a page."""
    ways: list[tuple[str, dict[str, Any]]] = [
        ("sgd", {}),
        ("sgd", {"repair": "fpf"}),
        ("sgd", {"repair": "k-fpf"}),
        ("sgd", {"repair": "k-fpf", "kd": 0.1}),
        ("er", {}),
        ("er", {"repair": "fpf"}),
        ("derpp", {}),
        ("derpp", {"repair": "fpf"}),
        ("joint", {}),
    ]
    ways = [(method, {**way, "anytime": True} if "repair" in way else way) for method, way in ways]
    runs = [resolve("seq-digits", method, {**way, "seed": seed}) for method, way in ways for seed in range(seeds)]
    with _bar() as progress:
        bar = progress.add_task("training", total=len(runs))
        from forgetless.experiments.lanes import Crash
        from forgetless.experiments.pack import run_lanes

        def say(settings: Settings) -> None:
            progress.update(bar, description=f"{settings.label}, seed {settings.seed}")

        _set_threads(runs[0][0])
        sources = {settings.id: own for settings, own in runs}
        made = {}
        for settings, done in run_lanes([settings for settings, _ in runs], 1, out, sources, on_start=say):
            if isinstance(done, Crash):
                raise done.error
            made[settings.id] = done
            progress.advance(bar)
    found = [made[settings.id] for settings, _ in runs]
    _print_rows(found)
    file = out / "report.html"
    links = {one.id: f"{one.id}/record.json" for one in found}
    write_whole(page.html(found, "Digits in five tasks", links).encode(), file)
    _say(f"page: {file}\nrecords: {out}")


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="TOML: settings, lists of them for a product, [[runs]] for several.")],
    out: Out = Path("runs"),
    on: On = "here",
    workers: Workers = None,
    lanes: Lanes = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    checkpoint_steps: CheckpointSteps = 0,
    retry: Retry = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
) -> None:
    """Every run of a plan, unless it has a record already. One that fails is written down and stops no other."""
    from forgetless.experiments import sweep as sweeping

    runs = sweeping.read_plan(file)
    if on == "here":  # elsewhere there may be other modules
        sweeping.check_plan(runs, out)
    if dry_run:
        here = sum(record.path(out, one.settings).exists() for one in runs)
        for one in runs:
            screen.print(f"{one.settings.id}  {one.settings.stream}  {one.settings.label}, seed {one.settings.seed}")
        screen.print(f"{len(runs)} runs, {here} of them done")
        return
    schedule = _schedule(checkpoint_steps, checkpoint_seconds)
    with _Progress(len(runs)) as progress:
        for note in sweeping.sweep(runs, out, on=on, workers=workers, lanes=lanes, retry=retry, schedule=schedule):
            progress.show(note)
    found = _agreeing([made for one in runs if (made := record.find(out, one.settings)) is not None])
    _print_by_stream(found)
    _say_versions(found)
    _say(f"{progress}; records: {out}")
    if progress.failed:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def search(
    context: typer.Context,
    stream: Annotated[str, typer.Argument(help="A name of `forgetless list`, or package.module:object.")],
    method: Annotated[str, typer.Argument(help="Likewise.")],
    grid: Annotated[Path | None, typer.Option(help="TOML: lists of values by setting; default: the paper's.")] = None,
    fpf: Annotated[bool, typer.Option("--fpf", help="Finetune the sensitive groups once, at the end.")] = False,
    k_fpf: Annotated[bool, typer.Option("--k-fpf", help="Also finetune them every so many steps.")] = False,
    distill: Annotated[bool, typer.Option("--distill", help="With the paper's grid: search λ of KD too.")] = False,
    seeds: Annotated[int, typer.Option(help="Of the runs of the chosen point, on all training images.")] = 5,
    search_seeds: Annotated[int, typer.Option(help="Of each point, on validation.")] = 1,
    halving: Annotated[bool, typer.Option("--halving", help="Further search seeds for the better half only.")] = False,
    out: Out = Path("runs"),
    on: On = "here",
    workers: Workers = None,
    lanes: Lanes = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    checkpoint_steps: CheckpointSteps = 0,
    retry: Retry = False,
) -> None:
    """Every point of a grid on validation, then the best on all data over seeds. Settings: as options, --buffer 200."""
    from forgetless.experiments import search as searching

    repair = _repair(fpf, k_fpf)
    catalogue.check_name("stream", stream)
    catalogue.check_name("method", method)
    if distill and (grid or repair != "k-fpf"):
        raise ValueError("--distill adds λ to the paper's grid of --k-fpf; to another grid add kd yourself")
    if halving and search_seeds == 1:
        raise ValueError("--halving gives further seeds to the better half: it needs --search-seeds 2 or more")
    space = searching.read_grid(grid) if grid else searching.paper_grid(stream, repair, distill=distill)
    given = _own(context.args, method) | ({"repair": repair} if repair != "none" else {})
    points = math.prod(map(len, space.values()))
    total = sum(searching.rungs(points, search_seeds, halving=halving)) + seeds
    with _Progress(total) as progress:
        for note in searching.search(
            stream, method, given, space, out, seeds=seeds, search_seeds=search_seeds, halving=halving,
            on=on, workers=workers, lanes=lanes, retry=retry, schedule=_schedule(checkpoint_steps, checkpoint_seconds),
        ):  # fmt: skip
            if not isinstance(note, searching.Found):
                progress.show(note)
    assert isinstance(note, searching.Found)
    _say_skipped(note.skipped)
    ranked = sorted(note.points, key=lambda one: (-len(one[1]), -searching.score(one[1])))
    table = Table(*space, "validation", "seeds", box=None, padding=(0, 2))
    for point, accuracies in ranked[:10]:
        shown = f"{searching.score(accuracies):.2f}" if accuracies else "failed"
        table.add_row(*map(str, point.values()), shown, str(len(accuracies)))
    screen.print(table)
    if len(ranked) > 10:
        screen.print(f"… and {len(ranked) - 10} points more")
    settings = ", ".join(f"{name} {value}" for name, value in note.chosen.items())
    several = len(note.ids) > 1
    spread = f" ± {note.spread:.2f} % over {len(note.ids)} seeds" if several else " % with one seed"
    screen.print(f"chosen: {settings}; on the test set {note.mean:.2f}{spread}")
    _say_versions(note.records)
    if halving:
        screen.print(f"halving saved {note.saved} runs")
    _say(f"all of it: {searching.path(out, note)}")


@app.command()
def reproduce(
    what: Annotated[str | None, typer.Argument(help="A name of --list.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="What there is, and what each costs.")] = False,
    stream: Annotated[str | None, typer.Option(help="Only this column; with --quick also another stream.")] = None,
    buffer: Annotated[int | None, typer.Option(help="Only this size of the buffer.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows of a table: er,fpf+er,…")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Runs of each; default: 5, with --quick 2.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="The digits, few seeds and points; with --stream that one.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Out = Path("runs"),
    figures: Annotated[Path, typer.Option(help="Folder of the figures.")] = Path("figures"),
    formats: Annotated[str, typer.Option(help="Of the figures: png, svg, pdf, with commas between.")] = "png",
    on: On = "here",
    workers: Workers = None,
    lanes: Lanes = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    checkpoint_steps: CheckpointSteps = 0,
    retry: Retry = False,
) -> None:
    """A table or figure of the paper: the paper's number, ours, the difference in standard errors; and the figure."""
    from forgetless.experiments import sweep as sweeping
    from forgetless.paper import reproduce as reproducing
    from forgetless.paper.studies import ITEMS
    from forgetless.paper.studies import notes as said
    from forgetless.reports import charts as drawing

    options = reproducing.Options(stream, buffer, _names("rows", "names", rows) or (), seeds, quick, device)
    if list_all:
        _list_items(options)
        return
    if what is None:
        raise ValueError(f"say what to reproduce: one of {', '.join(ITEMS)}; --list says what each costs")
    if what not in ITEMS:
        raise ValueError(catalogue.unknown("table or figure", what, ITEMS))
    drawing.check_formats(formats.split(","))
    item = ITEMS[what]
    item.check(what, options)
    schedule = _schedule(checkpoint_steps, checkpoint_seconds)
    if item.filters and (on != "here" or workers or lanes or retry or schedule != USUAL):
        raise ValueError(
            f"{what} is one run, in this process, which leaves no checkpoints: --on, --workers, --lanes, --retry and "
            "--checkpoint-… say nothing for it"
        )
    lines = item.lines(options)
    runs = reproducing.runs(lines)
    remarks = said(options, lines)
    for remark in remarks:
        screen.print(remark, highlight=False, soft_wrap=True)
    with _Progress(len(runs)) as progress:
        if item.filters:
            from forgetless.paper import filters

            for one in runs:
                progress.show(sweeping.Started(one.settings))
                filters.measure_filters(one, out)
                progress.show(sweeping.Done(one.settings, again=False))
        else:
            for note in sweeping.sweep(runs, out, on=on, workers=workers, lanes=lanes, retry=retry, schedule=schedule):
                progress.show(note)
    found = reproducing.read_measured(lines, out)
    if not found:
        raise ValueError(f"all runs failed; {sweeping.AGAIN}")
    records = _agreeing(list({made.id: made for measured in found for made in measured.records}.values()))
    found = reproducing.keep_records(found, records)
    for name in dict.fromkeys(measured.line.stream for measured in found):
        screen.print(name)
        _print_comparison([measured for measured in found if measured.line.stream == name])
    _say_versions(records)
    findings = item.findings(found)
    for finding in findings:
        screen.print(str(finding), highlight=False, soft_wrap=True)
    asked = [*([stream] if stream else []), *([str(buffer)] if buffer else []), *options.rows]
    asked += [f"seeds-{seeds}"] if seeds else []
    file = out / f"{'-'.join(['reproduce', what, *asked, *(['quick'] if quick else [])])}.json"
    record.write_json(reproducing.to_dict(what, found, findings, remarks), file)
    for name, picture in item.draw(found).items():
        stem = "-".join([what, *(word for word in asked if f"-{word}-" not in f"-{name}-"), name])
        for drawn in drawing.save(picture, figures, stem.replace(":", "-"), formats.split(",")):
            _say(f"figure: {drawn}")
    _say(f"{progress}; all of it: {file}")
    if progress.failed:
        raise typer.Exit(1)


def _print_comparison(found: list[Any]) -> None:
    """Rows of ``reproduce`` of one stream; the paper's columns where there is something in them."""
    compared = any(one.line.target for one in found)
    headings = [
        "",
        *(["paper"] if compared else []),
        "ours",
        *(["difference", "in s.e."] if compared else []),
        "TFLOPs",
    ]
    table = Table(box=None, padding=(0, 2))
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True)
    for one in found:
        target = one.line.target
        unit = "" if one.line.metric == "accuracy" else f" ({one.line.metric.replace('_', ' ')})"
        paper = "" if target is None else f"{target.mean:.2f}" + (f" ± {target.std:.2f}" if target.std else "")
        difference = "" if one.difference is None else f"{one.difference:+.2f}"
        errors = "" if one.standard_errors is None else f"{one.standard_errors:+.1f}"
        theirs = ([paper], [difference, errors]) if compared else ([], [])
        table.add_row(one.line.name + unit, *theirs[0], one.shown, *theirs[1], f"{one.tflops:.3g}")
    screen.print(table)


def _list_items(options: Any) -> None:
    """Every item that has what the options ask for, with the runs and steps it takes."""
    from forgetless.paper.reproduce import IMAGES, runs, training_steps
    from forgetless.paper.studies import ITEMS

    if options.stream is not None:
        catalogue.check_name("stream", options.stream)
    shown = Table("name", "runs", "million steps", "what", box=None, padding=(0, 2))
    for name, item in ITEMS.items():
        try:
            item.check(name, options)
            planned = runs(item.lines(options))
        except ValueError:  # it has no such column or rows
            continue
        counted = all(one.settings.stream in IMAGES for one in planned)
        total = f"{sum(training_steps(one.settings) for one in planned) / 1e6:.3g}" if counted else "–"
        shown.add_row(name, str(len(planned)), total, f"{item.summary} ({item.where})")
    screen.print(shown)
    screen.print(
        "A step of ResNet-18 on 32×32 images takes about 1 ms on an H200 in lanes (docs/speed.md), so that a million "
        "steps are about 17 minutes; one of the MLP takes about 0.4 ms on a CPU core. --quick: minutes, on the digits."
    )


@app.command("report")
def report_(
    folders: Annotated[
        list[str], typer.Argument(help="Folders or URLs of records, as `run`, `search` and `sweep` leave them.")
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    table: Annotated[Path | None, typer.Option(help="Also the table: .csv, or .tex for LaTeX.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also the figures, into this folder.")] = None,
    formats: Annotated[str, typer.Option(help="Of the figures: png, svg, pdf, with commas between.")] = "png,svg,pdf",
    title: Annotated[str | None, typer.Option(help="Of the page; default: the streams.")] = None,
) -> None:
    """A table, and one self-contained page with the pictures, of all records in some folders."""
    if table is not None and table.suffix not in (".csv", ".tex"):
        raise ValueError(f"table is {str(table)!r}; its name must end in .csv or .tex")
    if out.is_dir():
        raise ValueError(f"out is {str(out)!r}, a folder; it must be a file, say {str(out / 'report.html')!r}")
    if figures is not None:
        from forgetless.reports import charts as drawing

        drawing.check_formats(formats.split(","))
    files = {name: record.files(record.folder(name)) for name in folders}
    if empty := [name for name, own in files.items() if not own]:
        raise ValueError(f"there is no record in {', '.join(empty)}; a run leaves <folder>/<id>/record.json")
    read, problems = record.read_those([file for own in files.values() for file in own])
    _say_skipped(problems)
    read = _once(read)
    found = report.best_first(_agreeing([made for _, made in read]))
    if not found:
        raise ValueError(f"there is no whole record in {', '.join(folders)}")
    streams = _print_by_stream(found)
    _say_versions(found)
    links = {made.id: _address(file, out) for file, made in read}
    write_whole(page.html(found, title or ", ".join(streams), links).encode(), out)
    _say(f"page: {out}")
    if table is not None:
        text = report.latex_table(found) if table.suffix == ".tex" else report.csv_table(found)
        write_whole(text.encode(), table)
        _say(f"table: {table}")
    if figures is not None:
        for file in drawing.draw_records(found, figures, tuple(formats.split(","))):
            _say(f"figure: {file}")


def _say(text: str) -> None:
    """A line with a name of a file in it, which is not broken."""
    screen.print(text, highlight=False, soft_wrap=True)


def _say_skipped(problems: list[str]) -> None:
    for problem in problems:
        notes.print(f"skipped: {problem}", highlight=False, soft_wrap=True)


def _once(read: list[tuple[Path, record.Record]]) -> list[tuple[Path, record.Record]]:
    """Of files with the same id the first: a copy is no second seed. One that is no copy is named."""
    kept: dict[str, tuple[Path, record.Record]] = {}
    for file, made in read:
        first, other = kept.setdefault(made.id, (file, made))
        if file != first and not record.same_numbers(made, other):
            _say_skipped([f"{file} has other numbers than {first}, the record of the same settings"])
    return list(kept.values())


def _agreeing(found: list[record.Record]) -> list[record.Record]:
    """Those that can be put together; the others are named."""
    kept, problems = record.agreeing(found)
    _say_skipped(problems)
    return kept


def _say_versions(found: list[record.Record]) -> None:
    """Name the rows whose records were made by several versions: their means may be of different things."""
    for row in report.table_rows(found):
        if len(versions := sorted({made.versions.get("forgetless", "unknown") for made in row.records})) > 1:
            notes.print(f"{row.label}: its records were made by the versions {', '.join(versions)}", soft_wrap=True)


def _address(file: Path, page: Path) -> str:
    """Of a record, from where the page is."""
    if "://" in str(file):
        return str(file)
    return quote(Path(os.path.relpath(file.resolve(), page.resolve().parent)).as_posix())


@data.command("list")
def data_list() -> None:
    """What there is, and where it is looked for."""
    from forgetless.data.download import SOURCES
    from forgetless.data.readers.files import data_folder

    shown = Table("name", "what", "MB", "here", box=None, padding=(0, 2))
    for name, source in SOURCES.items():
        paths = [*source.contents, *source.folders]
        here = sum((data_folder() / path).exists() for path in paths)
        state = "yes" if here == len(paths) else "in part" if here else "no"
        shown.add_row(name, source.summary, str(source.megabytes), state)
    screen.print(shown)
    screen.print(f"folder: {data_folder()} (set FORGETLESS_DATA for another)")


@data.command("get")
def data_get(names: Annotated[list[str], typer.Argument(help="Names of `forgetless data list`.")]) -> None:
    """Fetch data sets, unless they are there and whole."""
    from forgetless.data.download import SOURCES, get, problems
    from forgetless.data.readers.files import data_folder

    for name in names:
        _check_data(name, SOURCES)
        if problems(name, data_folder()):
            get(name, data_folder())
        left = problems(name, data_folder())
        if left:
            raise ValueError(f"{name}: {'; '.join(left)}")
        screen.print(f"{name}: whole, in {data_folder()}")


@data.command("check")
def data_check(names: Annotated[list[str] | None, typer.Argument(help="Default: all that are here.")] = None) -> None:
    """Check the files of data sets against their published checksums."""
    from forgetless.data.download import SOURCES, problems
    from forgetless.data.readers.files import data_folder

    bad = False
    for name in names or list(SOURCES):
        _check_data(name, SOURCES)
        paths = [*SOURCES[name].contents, *SOURCES[name].folders]
        if not names and not any((data_folder() / path).exists() for path in paths):
            continue
        found = problems(name, data_folder())
        bad = bad or bool(found)
        screen.print(f"{name}: {'; '.join(found) or 'whole'}")
    if bad:
        raise typer.Exit(1)


def _say_warning(message: Warning | str) -> None:
    """One line, without the place in the library where it was noticed."""
    notes.print(f"warning: {message}", highlight=False, soft_wrap=True)


def _say_places(frames: list[traceback.FrameSummary]) -> None:
    for frame in frames:
        where = f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}"
        notes.print(where, highlight=False, soft_wrap=True)


def _said(error: Any) -> str:
    """What is wrong with a call; newer versions of typer leave the judging to pydantic, which names no value."""
    said: str = error.format_message()
    errors = getattr(error.__cause__, "errors", None)
    return said if errors is None else f"{said}; it is {errors()[0]['input']!r}"


def main() -> None:
    """Run the command; a mistake of the user's ends with one line that says what would be right."""
    from forgetless.data.readers.files import DataError

    catalogue.find_modules_here()
    _stop_on_sigterm()
    warnings.showwarning = lambda message, *_: _say_warning(message)
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (ValueError, DataError, ImportError, FloatingPointError, OSError) as error:
        notes.print(f"error: {error}", highlight=False, soft_wrap=True)
        _say_places(user_frames(error.__cause__) if error.__cause__ else [])
        sys.exit(2)
    except WrongCall as error:
        asked = type(error).__name__ == "NoArgsIsHelpError"
        notes.print(f"{'' if asked else 'error: '}{_said(error)}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except Exception as error:
        if not (frames := blamed_frames(error)):  # a mistake of the library's: all of it is needed
            raise
        notes.print(f"error: {type(error).__name__}: {error}", highlight=False, soft_wrap=True)
        _say_places(frames)
        sys.exit(1)
    if code == INTERRUPTED:
        notes.print("interrupted; the same command goes on from what records and checkpoints there are", soft_wrap=True)
    sys.exit(code)


def _train(
    settings: Settings,
    sources: dict[str, str],
    out: Path,
    schedule: Schedule,
    *,
    quiet: bool,
    eager: bool,
    log: str | None = None,
) -> record.Record:
    from forgetless.experiments.checkpoint import Stop
    from forgetless.experiments.run import run as run_one
    from forgetless.training.events import Began, Event, Stepped, TaskEnded

    _set_threads(settings)
    stop = Stop()
    stop.listen()
    how: dict[str, Any] = {"eager": eager, "schedule": schedule, "stop": stop}
    if log is not None:
        how["log"] = _logger(log, settings, out)
    if quiet:
        return run_one(settings, sources, out, **how)
    with _bar() as progress:
        bar = progress.add_task("reading data", total=None)

        def show(event: Event) -> None:
            if isinstance(event, Began):
                progress.update(bar, total=event.steps, description="task 1")
            elif isinstance(event, Stepped):
                progress.update(bar, completed=event.step, description=f"task {event.task}, epoch {event.epoch}")
            elif isinstance(event, TaskEnded):
                seen = event.accuracies[: event.seen]
                progress.console.print(f"after task {event.task}: {sum(seen) / len(seen):.1f} % on the tasks so far")

        return run_one(settings, sources, out, show, **how)


def _logger(name: str, settings: Settings, out: Path) -> Any:
    """A reader of the events that also logs them: TensorBoard's and wandb's files go beside the record."""
    from functools import partial

    from forgetless.experiments import loggers

    folder, title = out / settings.id, f"{settings.stream} {settings.label}, seed {settings.seed}"
    if name == "tensorboard":
        own: dict[str, Any] = {"folder": folder / "tensorboard"}
    elif name == "wandb":
        folder.mkdir(parents=True, exist_ok=True)
        own = {"name": title, "dir": str(folder)}
    else:
        own = {"name": title}
    return partial(loggers.LOGGERS[name], settings=settings.to_dict(), **own)


def _schedule(steps: int, seconds: float) -> Schedule:
    for name, value in (("checkpoint_steps", steps), ("checkpoint_seconds", seconds)):
        if value < 0:
            raise ValueError(f"{name} is {value}; it must be 0 or more")
    return Schedule(steps or None, seconds or None)


def _stop_on_sigterm() -> None:
    """Take SIGTERM, which schedulers send, as Ctrl-C."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def _repair(fpf: bool, k_fpf: bool) -> str:
    if fpf and k_fpf:
        raise ValueError("--fpf and --k-fpf exclude each other: k-FPF ends with a finetuning too")
    return "fpf" if fpf else "k-fpf" if k_fpf else "none"


def _set_threads(settings: Settings) -> None:
    """The MLP's small batches are no faster with several threads (docs/speed.md), unless the user says otherwise."""
    import torch

    small = settings.network == "mlp" and settings.batch + settings.replay <= 64
    if small and settings.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=notes, transient=True)


class _Progress:
    """How far many runs are: done, running, failed, time left; a failure is said at once."""

    def __init__(self, total: int) -> None:
        self.done = self.here = self.failed = 0
        self._running: set[str] = set()
        self._left = total
        self._bar = _bar()

    def __enter__(self) -> _Progress:
        self._bar.start()
        self._task = self._bar.add_task("starting", total=self._left)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def show(self, note: Any) -> None:
        """A note of a sweep. What was there before does not count as speed."""
        from forgetless.experiments.sweep import Failed, Started

        settings = note.settings
        if isinstance(note, Started):
            self._running.add(settings.id)
        else:
            self._running.discard(settings.id)
            if isinstance(note, Failed):
                self.failed += 1
                name = (
                    f"{settings.label} with {settings.network}, lr {settings.lr}, seed {settings.seed} ({settings.id})"
                )
                earlier = " (in an earlier call; --retry tries it again)" if note.again else ""
                notes.print(f"failed: {name}: {note.error}{earlier}", highlight=False, soft_wrap=True)
            elif note.again:
                self.here += 1
            else:
                self.done += 1
            if note.again:
                self._left -= 1
                self._bar.update(self._task, total=self._left)
            else:
                self._bar.advance(self._task)
        self._bar.update(self._task, description=f"{self}, {len(self._running)} running")

    def __str__(self) -> str:
        return f"{self.done} done, {self.here} already there, {self.failed} failed"


def _print_by_stream(found: list[record.Record]) -> list[str]:
    """A table for each stream; gives their names."""
    streams = report.by_stream(found)
    for stream, members in streams.items():
        screen.print(stream)
        _print_rows(members)
    return list(streams)


def _print_rows(records: list[record.Record]) -> None:
    table = Table(box=None, padding=(0, 1))
    for i, heading in enumerate(report.HEADINGS):
        table.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
    for row in report.table_rows(records):
        table.add_row(*report.cells(row))
    screen.print(table)


def _say_settings(settings: Settings, sources: dict[str, str]) -> None:
    """Which values a run starts from, and whose they are."""
    by_source: dict[str, list[str]] = {}
    values = {**settings.to_dict(), **settings.options}
    for name, source in sources.items():
        if name not in ("seed", "device", "repair"):
            by_source.setdefault(source, []).append(f"{name} {values.get(name, getattr(settings, name, None))}")
    usual = ("network", "epochs", "batch", "lr", "buffer", "replay")
    if rest := [f"{name} {values[name]}" for name in usual if name not in sources]:
        by_source["default"] = rest
    for source, names in by_source.items():
        notes.print(f"{source}: {', '.join(names)}", highlight=False)


def _own(arguments: list[str], method: str) -> dict[str, Any]:
    """Return the settings, a method's own among them, in the rest of a command line: --name value or --name=value."""
    texts: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"{word!r} is not expected here: options begin with --")
        name, equals, value = word[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"--{name} is no option of this command, and as a setting it needs a value")
            value = rest.pop(0)
        texts[name.replace("-", "_")] = value
    if "repair" in texts:
        raise ValueError(f"repair is {texts['repair']!r}; on the command line it is --fpf, --k-fpf or neither")
    known = run_settings()
    if any(name not in known for name in texts):
        known = {**method_settings(method), **known}
    return {name: known[name].parse(text) if name in known else text for name, text in texts.items()}


def _names(setting: str, wanted: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    if not found:
        raise ValueError(f"{setting} is {text!r}; it must be {wanted} with commas between them")
    return found


def _check_data(name: str, known: Any) -> None:
    if name not in known:
        raise ValueError(catalogue.unknown("data set", name, known))
