"""Compute the values of docs/findings.md beyond the paper: masked, shorter intervals, crops, balanced buffers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

from forgetless.paper import published
from pages.names import column_name, row_name, stream_and_buffer
from pages.rows import (
    COLUMNS,
    MASKED,
    CostAndAccuracy,
    accuracies,
    benchmark_record,
    column_rows,
    costs_and_accuracies,
    describe,
    first_accuracy,
    grid_points,
    searched_rows,
    standard_error,
    tflops,
)
from pages.studies import measured
from pages.template import markdown_table, spread


def values() -> dict[str, Any]:
    """Return the values of the template."""
    best = [best_rows(*column) for column in COLUMNS]
    return {**margins(best), **masked(), **intervals(), **crops(), **policies()}


def margins(best: Sequence[BestRow]) -> dict[str, Any]:
    """Return the best k-FPF of every column compared with the best row of the paper."""
    rows = [
        [column_name(each.stream, each.buffer), f"{row_name(each.paper_row)} {each.paper_accuracy:.2f}",
         f"{row_name(each.row)} {each.point.accuracy:.2f}", f"{each.point.accuracy - each.paper_accuracy:+.2f}",
         f"{each.errors:+.1f}", str(each.seeds), f"{each.point.tflops / each.derpp_tflops:.2f}"]
        for each in best
    ]  # fmt: skip
    header = ["", "best of the paper", "our best k-FPF", "margin", "in s.e.", "seeds", "cost"]
    above = [[column_name(each.stream, each.buffer), ", ".join(each.above) or "none"] for each in best]
    return {
        "margins_table": markdown_table(header, rows),
        "above_table": markdown_table(["", "rows above the paper's best, and their TFLOPs"], above),
        "clear": [each.row for each in best if each.errors > 2],
        "within_noise": [stream_and_buffer(each.stream, each.buffer) for each in best if 0 < each.errors <= 2],
        "best_columns": len(best),
        "dearest": max(each.point.tflops / each.derpp_tflops for each in best),
    }


def masked() -> dict[str, Any]:
    """Return the interval and the cost of k-FPF around masked, compared with ER and DER++."""
    runs = {column: rows[MASKED] for column in COLUMNS if MASKED in (rows := column_rows(*column))}
    costs = {column: costs_and_accuracies(column_rows(*column)) for column in runs}
    return {
        "masked_every": {column: row[0].settings["every"] for column, row in runs.items()},
        "masked_below_er": {column: cost[MASKED].tflops < cost["er"].tflops for column, cost in costs.items()},
        "masked_below_derpp": all(cost[MASKED].tflops < cost["derpp"].tflops for cost in costs.values()),
    }


class BestRow(NamedTuple):
    """The best row of the paper in a column, the rows above it, and the best k-FPF."""

    stream: str
    buffer: int
    paper_row: str
    paper_accuracy: float
    above: list[str]
    row: str
    point: CostAndAccuracy
    derpp_tflops: float
    errors: float  # our margin in standard errors
    seeds: int


def best_rows(stream: str, buffer: int) -> BestRow:
    """Return the rows above the best row of the paper, and how far the best k-FPF is above it."""
    paper = {row: t for row, t in published.find("table1", stream, buffer=buffer).items() if row != "joint"}
    paper_row, paper_best = max(paper.items(), key=lambda item: item[1].mean)
    rows = column_rows(stream, buffer)
    points = costs_and_accuracies(rows)
    limit = tflops(rows["fpf+derpp"])
    above = [
        f"{row_name(row)} {point.accuracy:.2f} ({point.tflops:.0f})"
        for row, point in sorted(points.items(), key=lambda item: -item[1].accuracy)
        if point.accuracy > paper_best.mean and point.tflops <= limit
    ]
    best = max((row for row in points if row.startswith("k-fpf")), key=lambda row: (points[row].accuracy, row))
    errors = (points[best].accuracy - paper_best.mean) / standard_error(paper_best, accuracies(rows[best]))
    return BestRow(
        stream, buffer, paper_row, paper_best.mean, above, best, points[best], points["derpp"].tflops, errors,
        len(rows[best]),
    )  # fmt: skip


def intervals() -> dict[str, Any]:
    """Return what more frequent finetunings reach, from the study of k and τ and from final runs."""
    lines = {(line.line.point.k, line.line.point.steps): line for line in measured("k-tau", "seq-pathmnist")}
    others = benchmark_record("intervals.json")["rows"]
    rows = []
    for row in others:
        runs = column_rows(row["stream"], row["buffer"])[row["row"]]
        rows.append([
            column_name(row["stream"], row["buffer"]), row_name(row["row"]),
            str(row["every"]), spread(row["accuracies"]),
            f"{row['tflops']:.0f}", str(runs[0].settings["every"]), spread(accuracies(runs)), f"{tflops(runs):.0f}",
        ])  # fmt: skip
    (rejected,) = (row["validation_accuracy"] for row in others if "validation_accuracy" in row)
    (chosen,) = (entry["validation_accuracy"] for entry in grid_points("seq-pathmnist", 200, "k-fpf+masked"))
    return {
        "often": {steps: lines[121, steps] for steps in (50, 300)},
        "intervals_table": markdown_table(
            ["", "row", "τ", "accuracy", "TFLOPs", "main τ", "accuracy", "TFLOPs"], rows
        ),
        "rejected_interval": rejected,
        "chosen_interval": chosen,
    }  # fmt: skip


def crops() -> dict[str, Any]:
    """Return what a finetuning gains on crops where the training has none."""
    rows, gains = [], []
    for without in benchmark_record("uncropped.json")["rows"]:
        runs = column_rows(without["stream"], without["buffer"])[without["row"]]
        settings, before = runs[0].settings, without["accuracies"]
        denser = settings["every"] == 50 and "every" not in without["row"]
        gains += [mean(accuracies(runs)) - mean(before)] if not denser else []  # else the interval contributes
        rows.append([
            column_name(without["stream"], without["buffer"]), row_name(without["row"]) + (" (*)" if denser else ""),
            spread(before), str(len(before)), spread(accuracies(runs)), str(len(runs)), str(settings["ft_pad"]),
        ])  # fmt: skip
    validation = []
    for buffer in (500, 200):
        points = {
            json.dumps(e["point"]): e["validation_accuracy"]
            for e in grid_points("seq-organamnist", buffer, "k-fpf+masked")
        }  # fmt: skip
        for every in (100, 50):
            point = {"lr": 0.03, "ft_lr": 0.05, "every": every, "steps": 100, "threshold": 0.1, "kd": 0.1}
            found = [points.get(json.dumps(point | pad)) for pad in ({}, {"ft_pad": 2}, {"ft_pad": 4})]
            validation.append([str(buffer), str(every), *("–" if v is None else f"{v:.1f}" for v in found)])
    return {
        "crops_table": markdown_table(["", "row", "without crops", "seeds", "on crops", "seeds", "`ft_pad`"], rows),
        "crop_gains": gains,
        "crops_validation": markdown_table(
            ["buffer", "every", "without crops", "`ft_pad` 2", "`ft_pad` 4"], validation
        ),
    }


def policies() -> dict[str, Any]:
    """Return a balanced buffer compared with a reservoir."""
    one_seed = {row["row"]: row["accuracy"] for row in benchmark_record("tiny-policy.json")["rows"]}
    rows = column_rows("seq-tinyimagenet", 200)
    several = {
        row: f"{spread(accuracies(rows[row]))} ({len(rows[row])} seeds)" for row in ("k-fpf-kd", "k-fpf-kd+masked")
    }
    tiny = [
        ["SGD", several["k-fpf-kd"], f"{one_seed['k-fpf-kd']:.1f} (one seed)"],
        ["`masked`", f"{one_seed['k-fpf-kd+masked']:.1f} (one seed)", several["k-fpf-kd+masked"]],
    ]
    pairs, lines = [], []
    for stream, buffer in COLUMNS:
        for row, searched in searched_rows(stream, buffer).items():
            by_point = {json.dumps(entry["point"]): first_accuracy(entry) for entry in searched["grid"]}
            for entry in searched["grid"]:
                point = {name: value for name, value in entry["point"].items() if name != "policy"}
                reservoir = by_point.get(json.dumps(point))
                if len(point) < len(entry["point"]) and reservoir is not None:
                    balanced = by_point[json.dumps(entry["point"])]
                    pairs.append((reservoir, balanced))
                    lines.append([
                        column_name(stream, buffer), row_name(row), f"{reservoir:.1f}", f"{balanced:.1f}",
                        describe(point),
                    ])  # fmt: skip
    return {
        "missing_classes": f"{(1 - 1 / 200) ** 200:.0%}",
        "tiny_policies": markdown_table(["k-FPF-KD around", "reservoir", "balanced"], tiny),
        "tiny_validation": {
            e["point"]["policy"]: e["validation_accuracy"] for e in grid_points("seq-tinyimagenet", 200, "k-fpf+masked")
        },
        "policies_table": markdown_table(["", "row", "reservoir", "balanced", "point"], lines),
        "policy_pairs": len(pairs),
        "worse_balanced": sum(balanced < reservoir for reservoir, balanced in pairs),
    }
