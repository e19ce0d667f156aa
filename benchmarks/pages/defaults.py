"""Compute the values of docs/defaults.md: the recommended recipe, replay and ``FPF(model)`` without tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import mean
from typing import Any

from committed import records
from one_out import STREAMS, Validation, choose
from pages.names import STREAM_NAMES, row_name
from pages.rows import benchmark_record
from pages.template import markdown_table

NAMES = STREAM_NAMES | {"seq-digits": "Seq-digits", "seq-mnist": "Seq-MNIST", "rot-mnist": "Rot-MNIST"}
Run = Mapping[str, Any]
ROWS = ("er", "derpp", "fpf+er", "fpf+derpp", "gdumb", "recipe")
ROW_NAMES = {"recipe-masked": "recipe, masked loss", "recipe-uncropped": "recipe without crops"}
TUNED_FPF = ("fpf+er", "fpf+derpp")
TUNED_RECIPE = ("k-fpf-kd+masked", "k-fpf-kd", "k-fpf-ce")
LOOP_STREAMS = ("abrupt", "fading")
LOOP_KINDS = {"alone": "alone", "fpf": "`FPF(model)`", "replay": "replay"}


def values() -> dict[str, Any]:
    """Return the values of the template."""
    recorded = benchmark_record("one-out.json")
    rows = {stream: untuned(recorded["runs"], stream) for stream in STREAMS}
    tuned = {
        stream: {"fpf": best_tuned(stream, TUNED_FPF), "recipe": best_tuned(stream, TUNED_RECIPE)} for stream in rows
    }
    behind = {NAMES[stream]: max(row[name] for name in ROWS) - row["recipe"] for stream, row in rows.items()}
    below_tuned = {
        NAMES[stream]: max(each for each in best.values() if each) - rows[stream]["recipe"]
        for stream, best in tuned.items()
        if best["recipe"]
    }
    return {
        "record": recorded,
        "table": table(rows, tuned),
        "rates": rate_table(recorded["validation"]),
        "gains": {
            name: gains(recorded["validation"], name, rate) for name, rate in (("masked", "0.1"), ("uncropped", "0.03"))
        },
        "behind": {stream: points for stream, points in behind.items() if points > 1},
        "below_tuned": {stream: points for stream, points in below_tuned.items() if points > 2},
        "below_elsewhere": max(points for points in below_tuned.values() if points <= 2),
        "costs": [row["cost"] for row in rows.values()],
        "loop": plain_loop(benchmark_record("plain-loop.json")),
    }


def untuned(runs: Sequence[Run], stream: str) -> dict[str, float]:
    """Return the mean accuracy of each row of a stream that was measured, and the recipe's FLOPs as a share of ER's."""
    row = {"recipe": mean(values_of(runs, stream, "recipe", "accuracy"))}
    for name, measured, value in (
        ("er", "fpf+er", "before_repair"),
        ("derpp", "fpf+derpp", "before_repair"),
        ("fpf+er", "fpf+er", "accuracy"),
        ("fpf+derpp", "fpf+derpp", "accuracy"),
        ("gdumb", "gdumb", "accuracy"),
    ):
        if found := values_of(runs, stream, measured, value):
            row[name] = mean(found)
    flops = values_of(runs, stream, "recipe", "flops")
    row["cost"] = mean(sum(each.values()) for each in flops) / (2 * flops[0]["train"])  # ER's batches are twice SGD's
    return row


def values_of(runs: Sequence[Run], stream: str, row: str, name: str) -> list[Any]:
    """Return a value of all runs of a row."""
    return [run[name] for run in runs if (run["stream"], run["row"]) == (stream, row)]


def gains(validation: Validation, variant: str, rate: str) -> dict[str, float]:
    """Return by how many points the recipe is above a variant of itself, by stream."""
    return {
        NAMES[stream]: mean(validation["recipe"][stream][rate].values()) - mean(rates[rate].values())
        for stream, rates in validation[f"recipe-{variant}"].items()
    }


def best_tuned(stream: str, labels: Sequence[str]) -> float | None:
    """Return the highest mean accuracy among the committed rows of a stream with these labels and 500 images."""
    if stream == "seq-digits":
        return None
    rows: dict[tuple[str, int | None], list[float]] = {}  # by label and interval
    for run in records(stream):
        if run.label in labels and run.settings["buffer"] == 500:
            rows.setdefault((run.label, run.settings.get("every")), []).append(run.accuracy)
    return max(map(mean, rows.values()), default=None)


def cell(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def table(rows: Mapping[str, Mapping[str, float]], tuned: Mapping[str, Mapping[str, float | None]]) -> str:
    """Return the main table."""
    header = [
        "",
        "ER",
        "DER++",
        "ER + FPF",
        "DER++ + FPF",
        "GDumb",
        "**recipe**",
        "FLOPs / ER's",
        "best FPF, tuned",
        "best k-FPF, tuned",
    ]
    lines = []
    for stream, row in rows.items():
        accuracies = [cell(row.get(name)) for name in ROWS]
        lines.append(
            [
                NAMES[stream],
                *accuracies,
                f"{row['cost']:.2f}",
                cell(tuned[stream]["fpf"]),
                cell(tuned[stream]["recipe"]),
            ]
        )
    return markdown_table(header, lines)


def rate_table(validation: Validation) -> str:
    """Return the validation accuracies by rate, and the rate that the other streams choose."""
    lines = [
        [
            ROW_NAMES.get(row) or row_name(row),
            NAMES[stream],
            cell(mean(rates["0.03"].values())),
            cell(mean(rates["0.1"].values())),
            choose(validation, row, stream) or "–",
        ]
        for row, by_stream in validation.items()
        for stream, rates in by_stream.items()
    ]
    return markdown_table(["row", "stream", "0.03", "0.1", "chosen by the others"], lines)


def plain_loop(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table of benchmarks/plain_loop.py and the values of its sentences.

    The costs leave out the weekly updates, whose cost is not recorded.
    """
    runs = {(row["optimizer"], row["stream"], row["kind"]): row["runs"] for row in record["rows"]}
    accuracies = {key: mean(run["accuracy"] for run in found) for key, found in runs.items()}
    optimizers = list(dict.fromkeys(optimizer for optimizer, stream, _ in runs if stream in LOOP_STREAMS))

    def means(kind: str, streams: Sequence[str] = LOOP_STREAMS) -> list[float]:
        return [accuracies[key] for key in product(optimizers, streams, [kind])]

    (weekly,) = (key for key in runs if key[1] == "weekly updates")
    repaired = [run for key, found in runs.items() if key[2] == "fpf" for run in found]
    before = [mean(run["before"] for run in runs[key]) for key in product(optimizers, LOOP_STREAMS, ["fpf"])]
    return {
        "record": record,
        "seeds": len(next(iter(runs.values()))),
        "table": plain_loop_table(optimizers, accuracies),
        "lowest": {kind: min(means(kind)) for kind in LOOP_KINDS},
        "highest": {kind: max(means(kind)) for kind in LOOP_KINDS},
        "best": {stream: {kind: max(means(kind, [stream])) for kind in LOOP_KINDS} for stream in LOOP_STREAMS},
        "lowest_run": min(run["accuracy"] for run in repaired),
        "lowest_before": min(before),
        "highest_before": max(before),
        "replay_ahead": [
            f"by {difference:.1f} points with {optimizer} on the {stream} stream"
            for optimizer, stream in product(optimizers, LOOP_STREAMS)
            if (difference := accuracies[optimizer, stream, "replay"] - accuracies[optimizer, stream, "fpf"]) > 0
        ],
        "cost": {
            kind: max(run["cost"] for key in product(optimizers, LOOP_STREAMS, [kind]) for run in runs[key])
            for kind in ("fpf", "replay")
        },
        "weekly": {"optimizer": weekly[0], "accuracy": accuracies[weekly]},
    }


def plain_loop_table(optimizers: Sequence[str], accuracies: Mapping[tuple[str, str, str], float]) -> str:
    """Return the mean accuracies by optimizer, with the columns of one stream next to each other."""
    columns = list(product(LOOP_STREAMS, LOOP_KINDS))
    header = ["optimiser and rate", *(f"{stream}: {LOOP_KINDS[kind]}" for stream, kind in columns)]
    lines = [
        [optimizer, *(cell(accuracies[optimizer, stream, kind]) for stream, kind in columns)]
        for optimizer in optimizers
    ]
    return markdown_table(header, lines)
