"""Compute the values of docs/findings.md: which claims of the paper hold, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from math import floor, inf
from statistics import mean, stdev
from typing import Any, NamedTuple

from committed import records
from forgetless.paper import published
from pages import better, images, newer
from pages.names import STREAM_NAMES, column_name, joined, row_name, stream_and_buffer
from pages.rows import (
    COLUMNS,
    MASKED,
    REPAIRABLE,
    STREAMS,
    accuracies,
    accuracies_before_finetuning,
    accuracies_without_crops,
    benchmark_record,
    column_rows,
    costs_and_accuracies,
    grid_points,
    rows_by_label,
)
from pages.studies import measured
from pages.template import markdown_table, spread, table_and_settings

GROUPS = ("conv1", "block1", "block2", "block3", "block4", "bn.affine", "fc")
METHOD_LIMIT, REPAIR_LIMIT = -3, -2  # points below the paper from which a row counts as not reached


def values() -> dict[str, Any]:
    """Return the values of the template."""
    return {
        **fpf_gains(),
        **k_fpf_compared(),
        "rotated": costs_and_accuracies(rows_by_label("rot-mnist")),
        "profiles": {stream: sensitivity_table(stream) for stream in STREAMS},
        "sensitivity": {stream: mean_sensitivities(stream) for stream in STREAMS},
        "smallest_statistics": smallest_statistics(),
        "named": {stream: named_groups(stream) for stream in ("seq-pathmnist", "seq-pacs")},
        **distillation(),
        **logits(),
        **not_reached(),
        **images.values(),
        **better.values(),
        **newer.values(),
    }


def fpf_gains() -> dict[str, Any]:
    """Return the accuracy before and after FPF's finetuning for every method and column."""
    gains: list[float] = []
    repair, training = [], []
    lost = dict.fromkeys(REPAIRABLE, 0)
    worse: list[str] = []
    tables = []
    for methods in (("er", "derpp"), ("agem", "icarl", "fdr", "der")):  # the latter were not measured in every column
        rows = []
        for stream, buffer in COLUMNS:
            cells = []
            for method in methods:
                if not (runs := column_rows(stream, buffer).get(f"fpf+{method}", [])):
                    continue
                before = accuracies_before_finetuning(runs)
                gains_of_row = [run.accuracy - old for run, old in zip(runs, before, strict=True)]
                gains += gains_of_row
                lost[method] += sum(gain <= 0 for gain in gains_of_row)
                if mean(gains_of_row) <= 0:
                    worse.append(f"{row_name(method)} on {stream_and_buffer(stream, buffer)}")
                repair += [run.flops["finetune"] / 1e12 for run in runs]
                training += [run.flops["train"] / 1e12 for run in runs]
                positive = sum(gain > 0 for gain in gains_of_row)
                after = mean(before) + mean(gains_of_row)
                cells.append(f"{mean(before):.1f} → {after:.1f} ({positive} of {len(runs)})")
            if cells:
                rows.append([column_name(stream, buffer), *cells])
        tables.append(markdown_table(["", *map(row_name, methods)], rows))
    return {
        "gains_table": "\n\n".join(tables),
        "gains": gains,
        "gaining": sum(gain > 0 for gain in gains),
        "repair_tflops": repair,
        "training_tflops": training,
        "lost": {method: count for method, count in sorted(lost.items(), key=lambda item: -item[1]) if count},
        "worse": joined(worse),
    }


def k_fpf_compared() -> dict[str, Any]:
    """Return accuracy and cost of k-FPF, and the rows of other methods that it beats."""
    rows, beaten_by_paper = [], []
    for stream, buffer in COLUMNS:
        points = costs_and_accuracies(column_rows(stream, buffer))
        others = {row: point.accuracy for row, point in points.items() if row.removeprefix("fpf+") in REPAIRABLE}
        from_paper = beaten(max(points[row].accuracy for row in ("k-fpf-ce", "k-fpf-kd")), others)
        beaten_by_paper.append(from_paper)
        cells = [
            f"{points[row].accuracy:.1f} ({points[row].tflops:.0f})" if row in points else "–"
            for row in ("er", "derpp", "k-fpf-ce", "k-fpf-kd", MASKED)
        ]
        masked_above = beaten(points[MASKED].accuracy, others).shown if MASKED in points else "–"
        names = ", ".join(row_name(row) for row in from_paper.missing) or "–"
        rows.append([column_name(stream, buffer), *cells, masked_above, from_paper.shown, names])
    header = ["", "ER", "DER++", "k-FPF-CE", "k-FPF-KD", row_name(MASKED), f"{row_name(MASKED)} is above",
              "k-FPF is above", "k-FPF is not above"]  # fmt: skip
    return {
        "k_fpf_table": table_and_settings(header, rows, 6),
        "k_fpf_above": sum(len(each.below) for each in beaten_by_paper),
        "k_fpf_compared": sum(len(each.below) + len(each.missing) for each in beaten_by_paper),
        "kd_without_crops": [mean(accuracies_without_crops("seq-organamnist", b)["k-fpf-kd"]) for b in (500, 200)],
        "around_der": max(entry["validation_accuracy"] for entry in grid_points("seq-cifar10", 500, "k-fpf+der")),
    }


class Beaten(NamedTuple):
    """The rows that an accuracy is above, and the others."""

    below: list[str]
    missing: list[str]

    @property
    def shown(self) -> str:
        return f"{len(self.below)} of {len(self.below) + len(self.missing)}"


def beaten(accuracy: float, others: dict[str, float]) -> Beaten:
    """Return the rows that an accuracy is above, and the others."""
    return Beaten(
        [row for row, other in others.items() if other < accuracy],
        [row for row, other in others.items() if other >= accuracy],
    )


def mean_sensitivities(stream: str) -> dict[str, dict[str, float]]:
    """Return S_g by row and group, averaged over the seeds, with buffer 500."""
    found = column_rows(stream, 500)
    rows = {"sgd": found["sgd"], "k-fpf-ce": found["k-fpf-ce"]}
    rows |= {method: found[f"fpf+{method}"] for method in REPAIRABLE if f"fpf+{method}" in found}
    return {
        row: {group: mean(run.sensitivity[group] or 0.0 for run in runs) for group in GROUPS}
        for row, runs in rows.items()
    }


def sensitivity_table(stream: str) -> str:
    """Return S_g by row and group as a table."""
    rows = mean_sensitivities(stream).items()
    return markdown_table(
        ["", *GROUPS], [[row_name(row), *(f"{by[group]:.2f}" for group in GROUPS)] for row, by in rows]
    )


def smallest_statistics() -> int:
    """Return the smallest S_g of batch norm's statistics on Seq-CIFAR-10 with buffer 500, rounded down."""
    runs = [run for row in column_rows("seq-cifar10", 500).values() for run in row]
    return floor(min(run.sensitivity.get("bn.stats") or inf for run in runs))


def named_groups(stream: str) -> dict[str, Any]:
    """Return the lines of the study of named groups, by FPF or k-FPF and the name of the groups."""
    lines = {(line.line.point.repair, line.line.point.groups): line for line in measured("parameters", stream)}
    names = {"without_block4": "Basis+Block1-3", "block4": "Basis+Block4", "all": "ALL"}
    return {
        kind: {key: lines[label, name] for key, name in names.items()}
        for kind, label in (("fpf", "FPF"), ("k_fpf", "k-FPF"))
    }


def distillation() -> dict[str, Any]:
    """Return what distillation gains, on test runs and on validation."""
    gain = {}
    for stream, buffer in COLUMNS:
        points = costs_and_accuracies(column_rows(stream, buffer))
        without_crops = accuracies_without_crops(stream, buffer).get("k-fpf-kd")
        distilled = mean(without_crops) if without_crops else points["k-fpf-kd"].accuracy
        gain[stream, buffer] = distilled - points["k-fpf-ce"].accuracy
    cifar = validation_accuracies("seq-cifar10", ("k-fpf-ce", "k-fpf-kd"))
    organ = validation_accuracies("seq-organamnist", ("k-fpf-ce", "k-fpf-kd"))
    masked = validation_accuracies("seq-cifar10", ("k-fpf+masked",))
    sparse = {"lr": 0.01, "ft_lr": 0.03, "every": 500}
    dense = {"lr": 0.05, "ft_lr": 0.05, "every": 100, "steps": 100, "threshold": 0.1}
    same_rates = {"lr": 0.1, "ft_lr": 0.1, "every": 500, "threshold": 0.1}
    pairs = [
        {"lr": lr, "ft_lr": ft_lr, "every": 250, "threshold": 0.1}
        for lr, ft_lr in ((0.01, 0.03), (0.03, 0.03), (0.03, 0.05), (0.05, 0.05))
    ]
    return {
        "kd_gain": gain,
        "kd_gain_table": markdown_table(
            ["", *(STREAM_NAMES[stream] for stream in STREAMS)],
            [[f"{buffer} images", *(f"{gain[stream, buffer]:+.2f}" for stream in STREAMS)] for buffer in (500, 200)],
        ),
        "paper_kd_gain": {
            buffer: paper["k-fpf-kd"].mean - paper["k-fpf-ce"].mean
            for buffer in (500, 200)
            for paper in (published.find("table1", "seq-organamnist", buffer=buffer),)
        },
        "by_threshold": {
            t: cifar[key(sparse | extra)]
            for t, extra in ((0.3, {}), (0.1, {"threshold": 0.1}), (0, {"threshold": 0.0}))
        },
        "by_kd_low": {kd: cifar[key(sparse | {"kd": kd, "threshold": 0.1})] for kd in (0.05, 0.1)},
        "by_kd_paper": {kd: cifar[key(sparse | {"kd": kd})] for kd in (0.1, 0.5)},
        "kd_pairs": [(cifar[key(point)], cifar[key(point | {"kd": 0.05})]) for point in pairs],
        "organ_same_rates": {0.0: organ[key(same_rates)], 0.2: organ[key(same_rates | {"kd": 0.2})]},
        "around_masked": {kd: masked[key(dense | {"kd": kd})] for kd in (0.0, 0.05, 0.1, 0.2)},
        "around_sgd": validation_accuracies("seq-cifar10", ("k-fpf-dense",))[key(dense)],
        "control": {
            e["point"]["kd"]: e["validation_accuracy"] for e in grid_points("seq-cifar10", 500, "k-fpf-dense-kd")
        },
        "path_deviation": {
            row: stdev(accuracies(column_rows("seq-pathmnist", 500)[row])) for row in ("k-fpf-ce", "k-fpf-kd")
        },
    }  # fmt: skip


def validation_accuracies(stream: str, rows: Iterable[str]) -> dict[str, float]:
    """Return the validation accuracies of some rows with buffer 500, by the key of the point."""
    return {
        key(entry["point"]): entry["validation_accuracy"] for row in rows for entry in grid_points(stream, 500, row)
    }


def key(point: dict[str, Any]) -> str:
    """Return a point as a key that does not depend on the order of its settings."""
    return json.dumps(point, sort_keys=True)


def logits() -> dict[str, Any]:
    """Return the accuracies by the time at which the distilled logits were stored."""
    outcome = benchmark_record("logits.json")
    rows: dict[tuple[str, float], dict[str | None, list[float]]] = {}
    for row in outcome["rows"]:
        rows.setdefault((row["method"], row["kd"]), {})[row["logits"]] = row["accuracies"]
    times = list(next(by_time for by_time in rows.values() if len(by_time) > 1))
    lines = []
    for (method, kd), by_time in rows.items():
        times_of_row = times if kd else [None]  # without distillation no logits are used
        cells = [spread(by_time[time]) for time in times_of_row] + ["–"] * (len(times) - len(times_of_row))
        lines.append([row_name(method), f"{kd:g}", *cells])
    return {
        "logits": outcome,
        "logits_table": markdown_table(["around", "λ", *(f"logits {time}" for time in times)], lines),
        "logits_means": {case: [mean(by_time[time]) for time in times] for case, by_time in rows.items() if case[1]},
    }


def not_reached() -> dict[str, Any]:
    """Return the rows that are further below the paper than the limits, and the number of rows compared."""
    lines: list[list[str]] = []
    streams: set[str] = set()
    compared = 0
    for stream, buffer in COLUMNS:
        found = column_rows(stream, buffer)
        rows = {row: point.accuracy for row, point in costs_and_accuracies(found).items()}
        if "joint" in found:
            rows["joint"] = mean(accuracies(found["joint"]))
        for label, target in published.find("table1", stream, buffer=buffer).items():
            if label not in rows:
                continue
            compared += 1
            gap = rows[label] - target.mean
            if gap < (REPAIR_LIMIT if "fpf" in label else METHOD_LIMIT):
                streams.add(stream)
                name = [column_name(stream, buffer), row_name(label)]
                lines.append([*name, f"{target.mean:.2f}", f"{rows[label]:.2f}", f"{gap:+.2f}"])
    table = markdown_table(["", "row", "paper", "ours", "difference"], lines)
    return {
        "not_reached_table": table,
        "not_reached": len(lines),
        "not_reached_streams": sorted(streams),
        "compared": compared,
        "longer": benchmark_record("joint-pacs-10-epochs.json"),
        "lower_rate": benchmark_record("joint-pacs-decay.json"),
        "same_seed": next(
            run.accuracy for run in records("seq-pacs") if run.label == "joint" and run.settings["seed"] == 0
        ),
        "joint_paper": published.find("table1", "seq-pacs", buffer=500)["joint"],
    }
