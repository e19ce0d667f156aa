"""Compute the comparison of docs/results.md with accuracies that other papers publish."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import mean
from typing import Any, NamedTuple

from committed import records
from forgetless.paper import published
from forgetless.paper.reproduce import Measured, Options
from forgetless.paper.studies import ITEMS
from pages.names import column_name
from pages.rows import (
    BENCHMARKS,
    accuracies,
    accuracies_before_finetuning,
    benchmark_record,
    column_rows,
    costs_and_accuracies,
    measured_lines,
    tflops,
)
from pages.template import markdown_table, spread

COLUMNS = tuple((stream, buffer) for stream in ("seq-cifar10", "seq-tinyimagenet") for buffer in (200, 500))
LONG = ("seq-cifar10", 500)  # the column of our rows, and of the paper's, with 50 epochs per task


class Figure(NamedTuple):
    """A published accuracy in percent."""

    method: str
    paper: str
    column: tuple[str, int]
    epochs: int  # per task
    accuracy: float
    deviation: float | None
    source: str
    in_note: bool  # read in a note on the paper instead of at its authors

    @property
    def shown(self) -> str:
        return f"{self.accuracy:.1f}" + (f" ± {self.deviation:.1f}" if self.deviation is not None else "")


class BestRow(NamedTuple):
    """Our most accurate continual row of a column."""

    label: str
    accuracy: float
    accuracies: list[float]
    tflops: float
    epochs: int


def values() -> dict[str, Any]:
    """Return the values of the template."""
    best = {column: best_row(*column) for column in COLUMNS}
    (epochs,) = {row.epochs for row in best.values()}
    long = {line.line.label: line for line in long_lines()}
    (pronc,) = (f for f in figures() if f.method == "ProNC" and f.column == ("seq-tinyimagenet", 200))
    return {
        "field_table": field_table(epochs, best, long["k-fpf-kd"]),
        "long_recipe": mean(run["accuracy"] for run in long_recipe()),
        "long_recipe_seeds": len(long_recipe()),
        "long_recipe_kept": any(run["last_repair_kept"] for run in long_recipe()),
        "long_recipe_tflops": mean(sum(run["flops"].values()) / 1e12 for run in long_recipe()),
        "long_published": {figure.method: figure.accuracy for figure in figures() if figure.column == LONG},
        "field_best": best,
        "field_above": {
            column: [f.method for f in figures() if f.column == column and f.accuracy > best[column].accuracy]
            for column in COLUMNS
        },
        "field_epochs": epochs,
        "field_methods": [figure.method for figure in figures() if figure.column == LONG],
        "untuned": {stream: mean(untuned_accuracies(stream, 500)) for stream in dict(COLUMNS)},
        "pronc_margin": best[pronc.column].accuracy - pronc.accuracy,
        "field_checked": max(
            (f for f in figures() if f.column == LONG and not f.in_note), key=lambda figure: figure.accuracy
        ),
        "field_longer": longer_rows(epochs),
        "long": long,
        "long_seeds": seeds_of(long["k-fpf-kd"]),
        "long_derpp_seeds": seeds_of(long["derpp"]),
        "long_tflops": {label: tflops(line.records) for label, line in long.items()},
        "long_paper": published.find("many-epochs", LONG[0], buffer=LONG[1])["k-fpf-kd"].mean,
    }


@cache
def figures() -> tuple[Figure, ...]:
    """Return the published accuracies."""
    with (BENCHMARKS / "records" / "field.csv").open(newline="") as file:
        return tuple(
            Figure(
                row["method"], row["paper"], (row["stream"], int(row["buffer"])), int(row["epochs"]),
                float(row["accuracy"]), float(row["deviation"]) if row["deviation"] else None, row["source"],
                row["read_in"].startswith("note"),
            )
            for row in csv.DictReader(file)
        )  # fmt: skip


def best_row(stream: str, buffer: int) -> BestRow:
    """Return our most accurate continual row; a method without runs is taken from FPF's runs after it."""
    rows = column_rows(stream, buffer)
    points = costs_and_accuracies(rows)
    label = max(points, key=lambda row: points[row].accuracy)
    runs = rows.get(label) or rows[f"fpf+{label}"]
    found = accuracies(runs) if label in rows else accuracies_before_finetuning(runs)
    return BestRow(label, points[label].accuracy, found, points[label].tflops, runs[0].settings["epochs"])


def untuned_accuracies(stream: str, buffer: int) -> list[float]:
    """Return the accuracies of the recommended recipe, whose learning rate was chosen on other streams."""
    runs = benchmark_record("one-out.json")["runs"] if buffer == 500 else []
    return [run["accuracy"] for run in runs if (run["stream"], run["row"]) == (stream, "recipe")]


def long_recipe() -> list[dict[str, Any]]:
    """Return the runs of the recommended recipe with 50 epochs per task."""
    runs: list[dict[str, Any]] = benchmark_record("recipe-50-epochs.json")["runs"]
    return runs


def long_lines() -> Sequence[Measured]:
    """Return our rows with 50 epochs per task."""
    lines = ITEMS["many-epochs"].lines(Options(stream=LONG[0], seeds=5, device="cuda"))
    return [line for line in measured_lines(lines) if line.line.metric == "accuracy"]


def seeds_of(line: Measured) -> str:
    """Return the number of seeds of a row as words."""
    return "one seed" if len(line.records) == 1 else f"{len(line.records)} seeds"


def longer_rows(epochs: int) -> dict[str, list[str]]:
    """Return the labels of our rows that trained for more epochs per task, by stream."""
    labels: dict[str, set[str]] = {}
    for stream in dict(COLUMNS):
        for run in (*records(stream), *records("studies")):
            if run.settings["stream"] == stream and run.settings["epochs"] > epochs:
                labels.setdefault(stream, set()).add(run.label)
    return {stream: sorted(found) for stream, found in labels.items()}


def field_table(epochs: int, best: Mapping[tuple[str, int], BestRow], long: Measured) -> str:
    """Return our best rows, k-FPF-KD after 50 epochs, and the published accuracies, with their epochs per task."""
    (long_epochs,) = {run.settings["epochs"] for run in long.records}
    target = published.find("many-epochs", LONG[0], buffer=LONG[1])["k-fpf-kd"]
    untuned = [untuned_accuracies(*column) for column in best]
    rows = [
        ["our best row", str(epochs), *(spread(row.accuracies) for row in best.values())],
        ["its seeds", "", *(str(len(row.accuracies)) for row in best.values())],
        ["its TFLOPs", "", *(f"{row.tflops:.0f}" for row in best.values())],
        ["our recipe, without tuning", str(epochs), *(spread(found) if found else "–" for found in untuned)],
        ["its seeds", "", *(str(len(found)) if found else "–" for found in untuned)],
        long_row(
            f"our recipe, without tuning, {len(long_recipe())} seeds",
            long_epochs,
            spread([run["accuracy"] for run in long_recipe()]),
        ),
        long_row(f"our k-FPF-KD, {seeds_of(long)}", long_epochs, f"{long.mean:.1f}"),
        long_row("k-FPF-KD in the paper", target.epochs, f"{target.mean:.1f} ± {target.std:.1f}"),
    ]
    for method in dict.fromkeys(figure.method for figure in figures()):
        by_column = {figure.column: figure for figure in figures() if figure.method == method}
        first = next(iter(by_column.values()))
        name = f"[{method}]({first.source}){' †' if first.in_note else ''} ({first.paper})"
        their_epochs = " / ".join(dict.fromkeys(str(figure.epochs) for figure in by_column.values()))
        rows.append([name, their_epochs, *(by_column[c].shown if c in by_column else "–" for c in COLUMNS)])
    return markdown_table(["", "epochs", *(column_name(*column) for column in COLUMNS)], rows)


def long_row(name: str, epochs: int, accuracy: str) -> list[str]:
    """Return a line of the table with an accuracy in one column."""
    return [name, str(epochs), *(accuracy if column == LONG else "–" for column in COLUMNS)]
