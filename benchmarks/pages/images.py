"""Compute the values of docs/findings.md on images: centring, augmentation, and the edge of a crop."""

from __future__ import annotations

from statistics import mean
from typing import Any

from forgetless.paper import published
from pages.names import STREAM_NAMES, column_name, row_name
from pages.rows import benchmark_record, column_rows, costs_and_accuracies
from pages.template import markdown_table


def values() -> dict[str, Any]:
    """Return the values of the template."""
    paper = published.find("table1", "seq-organamnist", buffer=500)
    points = costs_and_accuracies(column_rows("seq-organamnist", 500))
    return {
        **centring(),
        "augmentation": [augmentation(f"augmentation{suffix}.json") for suffix in ("", "-organ")],
        "organ_difference": max(abs(points[row].accuracy - paper[row].mean) for row in ("sgd", "er", "der", "derpp")),
        **edges(),
    }


def centring() -> dict[str, Any]:
    """Return the accuracies with the statistics of batch norm by the preparation of the images."""
    outcome = benchmark_record("centring.json")
    header = ["", "images", "running statistics, %", "batch statistics, %"]
    rows = [
        [STREAM_NAMES[row["stream"]], row["prepared"], str(row["running_mean"]), str(row["batches_mean"])]
        for row in outcome["rows"]
    ]
    gaps = {(row["stream"], row["prepared"]): row["batches_mean"] - row["running_mean"] for row in outcome["rows"]}
    return {"centring": outcome, "centring_table": markdown_table(header, rows), "statistics_gap": gaps}


def augmentation(name: str) -> dict[str, Any]:
    """Return the accuracies of a stream by its augmentation."""
    outcome = benchmark_record(name)
    runs: dict[str, dict[str, float]] = {}
    for row in outcome["rows"]:
        settings = row["settings"]
        run = f"{row_name(row['label'])}, lr {settings['lr']:g}, finetuning {settings['ft_lr']:g}"
        runs.setdefault(run, {})[row["images"]] = row["accuracy"]
    ways = list(next(iter(runs.values())))
    first = outcome["rows"][0]["settings"]
    rows = [[run, *(f"{by_way[way]:.1f}" for way in ways)] for run, by_way in runs.items()]
    return {
        "table": markdown_table([column_name(first["stream"], first["buffer"]), *ways], rows),
        "command": outcome["command"],
        "device": outcome["device"],
    }


def edges() -> dict[str, Any]:
    """Return the accuracies by what a crop shows beyond the edge."""
    small, large = benchmark_record("edges.json"), benchmark_record("edges-h200.json")
    gains = [row["mirrored"] - row["black"] for row in large["rows"]]
    rows = [
        [row["images"], *(str(row[name]) for name in ("running_mean", "lowest", "batches_mean"))]
        for row in small["rows"]
    ]
    header = ["images", "running statistics, %", "lowest of them", "batch statistics, %"]
    return {
        "edges": small,
        "edges_table": markdown_table(header, rows),
        "edges_running": {row["images"]: row["running_mean"] for row in small["rows"]},
        "edges_gpu": large,
        "edge_gain": mean(gains),
        "edge_better": sum(gain > 0 for gain in gains),
        "edge_points": len(gains),
        "edge_rows": {
            row: ", ".join(f"{e['black']:.1f} → {e['mirrored']:.1f} %" for e in large["rows"] if e["row"] == row)
            for row in ("joint", "k-fpf-ce")
        },
    }
