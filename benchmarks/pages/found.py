"""The committed records, by row, and numbers of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from committed import records, search
from forgetless.experiments import record
from forgetless.paper import published as targets
from forgetless.paper.reproduce import Line, Measured

HERE = Path(__file__).parent.parent
DOCS = HERE.parent / "docs"
STREAMS = ("seq-cifar10", "seq-organamnist", "seq-pathmnist", "seq-pacs", "seq-tinyimagenet")
COLUMNS = tuple((stream, buffer) for stream in STREAMS for buffer in (500, 200))
MASKED = "k-fpf-kd+masked"
REPAIRABLE = ("er", "agem", "icarl", "fdr", "der", "derpp")


def read(name: str) -> Any:
    return json.loads((HERE / "records" / name).read_text())


def rows(column: str) -> dict[str, list[record.Record]]:
    found: dict[str, list[record.Record]] = {}
    for made in sorted(records(column), key=lambda made: (made.label, made.settings["seed"])):
        found.setdefault(made.label, []).append(made)
    return found


def measured(stream: str, buffer: int, *, anytime: bool = False) -> dict[str, list[record.Record]]:
    """The records of a column by row; those of methods without a buffer belong to every column of the stream.

    ``anytime``: those of runs that were also finetuned and tested after each task, which the others are not among.
    """
    denser = chosen_rows(stream, buffer).get("k-fpf-dense", {}).get("chosen", {})
    found: dict[str, list[record.Record]] = {}
    for made in records(stream):
        if made.settings.get("anytime", False) != anytime:
            continue
        if made.label in ("joint", "sgd", "oewc") or made.settings["buffer"] == buffer:
            row, own = made.label, made.settings
            if row in ("k-fpf-ce", "k-fpf-kd") and denser and denser.items() <= own.items():
                row = f"{row}, every {own['every']} steps"
            found.setdefault(row, []).append(made)
    return found


def recorded(lines: Sequence[Line]) -> list[Measured]:
    """Return the lines of the studies that have records, each with its records."""
    by_id = {made.id: made for made in records("studies")}
    found = [
        Measured(line, tuple(by_id[one.settings.id] for one in line.runs if one.settings.id in by_id)) for line in lines
    ]
    return [one for one in found if one.records]


def trained_elsewhere(stream: str, buffer: int) -> dict[str, list[record.Record]]:
    """Runs of FPF in the further tables whose method has no run in this column: for its accuracies before FPF."""
    own = measured(stream, buffer)
    found: dict[str, list[record.Record]] = {}
    for made in records("studies"):
        of_column = (made.settings["stream"], made.settings["buffer"]) == (stream, buffer)
        if of_column and made.label.startswith("fpf+") and made.label not in own:
            found.setdefault(made.label, []).append(made)
    return {f"fpf+{method}": found[f"fpf+{method}"] for method in REPAIRABLE if f"fpf+{method}" in found}


def chosen_rows(stream: str, buffer: int) -> dict[str, Any]:
    """What was searched for and chosen, by row."""
    found: dict[str, Any] = search(stream, buffer)["rows"]
    return found


def uncropped(stream: str, buffer: int) -> dict[str, list[float]]:
    """Accuracies, by row, of the rows that finetune on crops, from when they did not."""
    rows = read("uncropped.json")["rows"]
    return {row["row"]: row["accuracies"] for row in rows if (row["stream"], row["buffer"]) == (stream, buffer)}


def tried(stream: str, buffer: int, row: str) -> list[dict[str, Any]]:
    """The points of a row's grid, each with its accuracy on validation, with the first seed."""
    grid: list[dict[str, Any]] = chosen_rows(stream, buffer)[row]["grid"]
    return [
        {**entry, "validation_accuracy": entry.get("validation_accuracies", [entry["validation_accuracy"]])[0]}
        for entry in grid
    ]


def confirmed(stream: str, buffer: int) -> dict[str, int]:
    """Rows whose best points were compared with several seeds, and with how many."""
    return {
        row: max(seeds)
        for row, own in chosen_rows(stream, buffer).items()
        if (seeds := [len(e["validation_accuracies"]) for e in own["grid"] if "validation_accuracies" in e])
    }


def unfinished(stream: str, buffer: int) -> dict[str, tuple[dict[str, Any], float, float]]:
    """Rows whose best point on validation is not the one that was trained: it, its accuracy, and that one's."""
    found = {}
    for row, own in chosen_rows(stream, buffer).items():
        accuracies = [entry["validation_accuracy"] or 0.0 for entry in own["grid"]]
        best = own["grid"][accuracies.index(max(accuracies))]
        if best["point"] != own["chosen"]:
            (taken,) = (e["validation_accuracy"] for e in own["grid"] if e["point"] == own["chosen"])
            found[row] = (best["point"], best["validation_accuracy"], taken)
    return found


def points_of(found: dict[str, list[record.Record]]) -> dict[str, tuple[float, float]]:
    """TFLOPs and accuracy of each row, less joint; FPF's rows give those of methods without a row of their own."""
    points = {}
    for row, runs in found.items():
        flops = tflops(runs)
        points[row] = (flops, mean(made.accuracy for made in runs))
        if row.startswith("fpf+") and row.removeprefix("fpf+") not in found:
            flops -= mean(made.flops["finetune"] for made in runs) / 1e12
            points[row.removeprefix("fpf+")] = (flops, mean(mean(made.before_finetuning or []) for made in runs))
    points.pop("joint", None)
    return points


def settings(records: list[record.Record]) -> str:
    """What a row was trained with, beyond what all rows share."""
    first = records[0].settings
    names = (
        ["lr", "batch", "replay"]
        if first["method"] not in ("sgd", "masked", "joint", "oewc", "gdumb")
        else ["lr", "batch"]
    )
    values = {name: first[name] for name in names} | first["options"]
    if first["repair"] != "none":
        values |= {name: first[name] for name in ("ft_lr", "ft_pad", "every", "kd", "policy") if first.get(name)}
        if first["threshold"] != {"fpf": 1.0, "k-fpf": 0.3}[first["repair"]]:
            values["threshold"] = first["threshold"]
        if first["groups"] != "auto":
            values["groups"] = " ".join(first["groups"])
    return listed(values)


def listed(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def finetuned(records: list[record.Record]) -> str:
    """The groups chosen, with how many seeds chose them where they differ."""
    chosen: dict[str, int] = {}
    for made in records:
        if made.chosen:
            name = " ".join(made.chosen)
            chosen[name] = chosen.get(name, 0) + 1
    if len(chosen) == 1:
        return next(iter(chosen))
    return "; ".join(f"{name} ({count} of {len(records)})" for name, count in chosen.items())


def accuracies(records: list[record.Record]) -> list[float]:
    return [made.accuracy for made in records]


def spread(values: list[float], digits: int = 1) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def tflops(records: list[record.Record]) -> float:
    """Of a whole run, mean over them."""
    return mean(sum(made.flops.values()) for made in records) / 1e12


def standard_error(target: targets.Target, values: list[float]) -> float:
    """Of the difference between our mean and the paper's, which is over five runs."""
    return float((((target.std or 0) ** 2) / 5 + stdev(values) ** 2 / len(values)) ** 0.5)
