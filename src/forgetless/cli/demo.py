"""``forgetless demo``: several methods on the digits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli.options import Out
from forgetless.cli.output import print_line, print_rows, progress_bar
from forgetless.cli.run import set_threads
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings, resolve
from forgetless.experiments.storage import write_whole
from forgetless.reports import page

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sgd", {}),
    ("sgd", {"repair": "fpf", "anytime": True}),
    ("sgd", {"repair": "k-fpf", "anytime": True}),
    ("sgd", {"repair": "k-fpf", "kd": 0.1, "anytime": True}),
    ("er", {}),
    ("er", {"repair": "fpf", "anytime": True}),
    ("derpp", {}),
    ("derpp", {"repair": "fpf", "anytime": True}),
    ("joint", {}),
)


def demo(
    out: Out = Path("forgetless-demo"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds per method.")] = 3,
) -> None:
    """Train methods with and without FPF on the digits, in under a minute; print a table and write a page."""
    runs = [
        resolve("seq-digits", method, {**given, "seed": seed}) for method, given in VARIANTS for seed in range(seeds)
    ]
    records = _train_all([settings for settings, _ in runs], {settings.id: sources for settings, sources in runs}, out)
    print_rows(records)
    file = out / "report.html"
    links = {finished.id: f"{finished.id}/record.json" for finished in records}
    write_whole(page.html(records, "Digits in five tasks", links).encode(), file)
    print_line(f"page: {file}\nrecords: {out}")


def _train_all(runs: list[Settings], sources: dict[str, dict[str, str]], out: Path) -> list[Record]:
    """Train in this process and return the records in the order of ``runs``."""
    from forgetless.experiments.pack import run_lanes

    set_threads(runs[0])
    records: dict[str, Record] = {}
    with progress_bar() as progress:
        bar = progress.add_task("training", total=len(runs))

        def show(settings: Settings) -> None:
            progress.update(bar, description=f"{settings.label}, seed {settings.seed}")

        for settings, result in run_lanes(runs, 1, out, sources, on_start=show):
            if not isinstance(result, Record):
                raise result.error
            records[settings.id] = result
            progress.advance(bar)
    return [records[settings.id] for settings in runs]
