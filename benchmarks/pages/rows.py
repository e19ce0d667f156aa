"""Group the committed records into the rows of the paper's tables, and derive the numbers that the pages show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from committed import records, search
from forgetless.experiments.record import Record
from forgetless.paper import published
from forgetless.paper.reproduce import Line, Measured, measure

BENCHMARKS = Path(__file__).parent.parent
DOCS = BENCHMARKS.parent / "docs"
STREAMS = ("seq-cifar10", "seq-organamnist", "seq-pathmnist", "seq-pacs", "seq-tinyimagenet")
COLUMNS = tuple((stream, buffer) for stream in STREAMS for buffer in (500, 200))
MASKED = "k-fpf-kd+masked"
REPAIRABLE = ("er", "agem", "icarl", "fdr", "der", "derpp")
WITHOUT_BUFFER = ("joint", "sgd", "oewc")
WITHOUT_REPLAY = ("sgd", "masked", "joint", "oewc", "gdumb")


class CostAndAccuracy(NamedTuple):
    """The mean cost of the runs of a row and their mean accuracy in percent."""

    tflops: float
    accuracy: float


class BetterPoint(NamedTuple):
    """A point of a grid that beats the one that was trained, and both accuracies on validation."""

    point: dict[str, Any]
    accuracy: float
    trained_accuracy: float


def benchmark_record(name: str) -> Any:
    """Return the record that a script of benchmarks/ wrote."""
    return json.loads((BENCHMARKS / "records" / name).read_text())


def rows_by_label(column: str) -> dict[str, list[Record]]:
    """Return the records of a column by label, in the order of labels and seeds."""
    rows: dict[str, list[Record]] = {}
    for run in sorted(records(column), key=lambda run: (run.label, run.settings["seed"])):
        rows.setdefault(run.label, []).append(run)
    return rows


def column_rows(stream: str, buffer: int, *, anytime: bool = False) -> dict[str, list[Record]]:
    """Return the records of a column of the main table by row; methods without a buffer belong to every buffer size.

    ``anytime`` selects the runs that were also finetuned and tested after each task, which are otherwise left out.
    """
    dense = searched_rows(stream, buffer).get("k-fpf-dense", {}).get("chosen", {})
    rows: dict[str, list[Record]] = {}
    for run in records(stream):
        if run.settings.get("anytime", False) != anytime:
            continue
        if run.label in WITHOUT_BUFFER or run.settings["buffer"] == buffer:
            row = run.label
            if row in ("k-fpf-ce", "k-fpf-kd") and dense and dense.items() <= run.settings.items():
                row = f"{row}, every {run.settings['every']} steps"
            rows.setdefault(row, []).append(run)
    return rows


def measured_lines(lines: Sequence[Line]) -> list[Measured]:
    """Return the lines of the studies that have records, each with its records."""
    return measure(lines, records("studies"))


def rows_from_studies(stream: str, buffer: int) -> dict[str, list[Record]]:
    """Return FPF's runs in the studies whose method has no run in the column, for the accuracies before FPF."""
    present = column_rows(stream, buffer)
    rows: dict[str, list[Record]] = {}
    for run in records("studies"):
        in_column = (run.settings["stream"], run.settings["buffer"]) == (stream, buffer)
        if in_column and run.label.startswith("fpf+") and run.label not in present:
            rows.setdefault(run.label, []).append(run)
    return {f"fpf+{method}": rows[f"fpf+{method}"] for method in REPAIRABLE if f"fpf+{method}" in rows}


def searched_rows(stream: str, buffer: int) -> dict[str, Any]:
    """Return the grid and the chosen point of each row of a column."""
    rows: dict[str, Any] = search(stream, buffer)["rows"]
    return rows


def accuracies_without_crops(stream: str, buffer: int) -> dict[str, list[float]]:
    """Return, for the rows that finetune on crops, the accuracies of earlier runs without crops."""
    rows = benchmark_record("uncropped.json")["rows"]
    return {row["row"]: row["accuracies"] for row in rows if (row["stream"], row["buffer"]) == (stream, buffer)}


def grid_points(stream: str, buffer: int, row: str) -> list[dict[str, Any]]:
    """Return the points of a row's grid, each with the validation accuracy of the first seed."""
    grid: list[dict[str, Any]] = searched_rows(stream, buffer)[row]["grid"]
    return [{**entry, "validation_accuracy": first_accuracy(entry)} for entry in grid]


def first_accuracy(entry: Mapping[str, Any]) -> float:
    """Return the validation accuracy of a point with the first seed."""
    accuracies: list[float] = entry.get("validation_accuracies", [entry["validation_accuracy"]])
    return accuracies[0]


def confirmed_rows(stream: str, buffer: int) -> dict[str, int]:
    """Return the rows whose best points were compared with several seeds, and the number of seeds."""
    return {
        row: max(seeds)
        for row, searched in searched_rows(stream, buffer).items()
        if (seeds := [len(e["validation_accuracies"]) for e in searched["grid"] if "validation_accuracies" in e])
    }


def better_points(stream: str, buffer: int) -> dict[str, BetterPoint]:
    """Return the rows whose best point on validation is not the one that was trained."""
    better = {}
    for row, searched in searched_rows(stream, buffer).items():
        best = max(searched["grid"], key=lambda entry: entry["validation_accuracy"] or 0.0)
        if best["point"] != searched["chosen"]:
            (trained,) = (e["validation_accuracy"] for e in searched["grid"] if e["point"] == searched["chosen"])
            better[row] = BetterPoint(best["point"], best["validation_accuracy"], trained)
    return better


def costs_and_accuracies(rows: Mapping[str, list[Record]]) -> dict[str, CostAndAccuracy]:
    """Return cost and accuracy of every row but joint; FPF's rows stand in for methods without a row."""
    points = {}
    for row, runs in rows.items():
        points[row] = CostAndAccuracy(tflops(runs), mean(accuracies(runs)))
        method = row.removeprefix("fpf+")
        if method not in rows:
            points[method] = CostAndAccuracy(tflops_before_finetuning(runs), mean(accuracies_before_finetuning(runs)))
    points.pop("joint", None)
    return points


def describe_settings(runs: Sequence[Record]) -> str:
    """Return the settings of a row that differ from row to row."""
    first = runs[0].settings
    names = ["lr", "batch"] if first["method"] in WITHOUT_REPLAY else ["lr", "batch", "replay"]
    values = {name: first[name] for name in names} | first["options"]
    if first["repair"] != "none":
        values |= {name: first[name] for name in ("ft_lr", "ft_pad", "every", "kd", "policy") if first.get(name)}
        if first["threshold"] != {"fpf": 1.0, "k-fpf": 0.3}[first["repair"]]:
            values["threshold"] = first["threshold"]
        if first["groups"] != "auto":
            values["groups"] = " ".join(first["groups"])
    return describe(values)


def describe(values: Mapping[str, Any]) -> str:
    """Return names and values, separated by commas."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def chosen_groups(runs: Sequence[Record]) -> str:
    """Return the groups that were finetuned, with the number of seeds where the seeds differ."""
    counts: dict[str, int] = {}
    for run in runs:
        if run.chosen:
            name = short_list(run.chosen, list(run.sensitivity))
            counts[name] = counts.get(name, 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return "; ".join(f"{name} ({count} of {len(runs)})" for name, count in counts.items())


def short_list(chosen: Sequence[str], groups: Sequence[str]) -> str:
    """Return the chosen groups, or the groups that are left out if that is shorter."""
    if len(chosen) == len(groups):
        return "all"
    without_norm = [group.replace("bn.affine", "bn") for group in groups if group != "bn.stats"]  # chosen together
    named = [group for group in without_norm if group in chosen or (group == "bn" and "bn.affine" in chosen)]
    left_out = "all but " + " ".join(group for group in without_norm if group not in named)
    return min(" ".join(named), left_out, key=len)


def accuracies(runs: Iterable[Record]) -> list[float]:
    """Return the accuracies of some runs in percent."""
    return [run.accuracy for run in runs]


def accuracies_before_finetuning(runs: Iterable[Record]) -> list[float]:
    """Return the mean accuracy over tasks before FPF's finetuning, for each run."""
    return [mean(run.before_finetuning or []) for run in runs]


def tflops(runs: Iterable[Record]) -> float:
    """Return the TFLOPs of a whole run, averaged over some runs."""
    return mean(sum(run.flops.values()) for run in runs) / 1e12


def tflops_before_finetuning(runs: Iterable[Record]) -> float:
    """Return the TFLOPs of a run without FPF's finetuning, averaged over some runs."""
    return mean(sum(run.flops.values()) - run.flops["finetune"] for run in runs) / 1e12


def standard_error(target: published.Target, values: Sequence[float]) -> float:
    """Return the standard error of our mean minus the paper's mean, which is over five runs."""
    return float((((target.std or 0) ** 2) / 5 + stdev(values) ** 2 / len(values)) ** 0.5)
