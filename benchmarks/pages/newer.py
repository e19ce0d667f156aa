"""Compute the values of the section on newer methods in docs/findings.md: FPF after them, and published figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from committed import search
from forgetless.paper import published
from pages.names import row_name
from pages.rows import (
    accuracies,
    accuracies_before_finetuning,
    benchmark_record,
    chosen_groups,
    describe_settings,
    rows_by_label,
    tflops,
    tflops_before_finetuning,
)
from pages.template import markdown_table, spread, table_and_settings
from seq_mnist import NEWER

STREAMS = {"seq-digits": "Seq-digits", "seq-mnist": "Seq-MNIST"}


class Gain(NamedTuple):
    """The mean gain of some runs and its standard error, in points."""

    mean: float
    error: float


def values() -> dict[str, Any]:
    """Return the values of the section."""
    mlp = rows_by_label("seq-mnist")
    rows, gains, after, leads = [], {}, {}, {}
    for method in (*NEWER, "derpp", "er"):
        runs = mlp[f"fpf+{method}"]
        before = accuracies_before_finetuning(runs)
        differences = [new - old for new, old in zip(accuracies(runs), before, strict=True)]
        gains[method] = Gain(mean(differences), stdev(differences) / len(runs) ** 0.5)
        after[method] = mean(accuracies(runs))
        leads[method] = mean(lead(run.before_finetuning or []) for run in runs)
        lead_after = mean(lead(run.accuracy_matrix[-1]) for run in runs)
        rows.append([
            row_name(method), spread(before, 2), spread(accuracies(runs), 2),
            f"{gains[method].mean:+.2f} ± {gains[method].error:.2f}", f"{leads[method]:+.1f} → {lead_after:+.1f}",
            str(len(runs)), f"{1000 * tflops_before_finetuning(runs):.0f} → {1000 * tflops(runs):.0f}",
            chosen_groups(runs), describe_settings(runs),
        ])  # fmt: skip
    header = ["", "alone", "with FPF", "gain", "lead", "seeds", "GFLOPs", "finetuned groups", "settings"]
    return {
        "newer": NEWER,
        "newer_table": table_and_settings(header, rows, 7),
        "newer_gains": gains,
        "clear_gains": [method for method, gain in gains.items() if gain.mean > 2 * gain.error],
        "newer_after": after,
        "newer_leads": leads,
        "highest_lead": max(leads[method] for method in NEWER),
        "newer_scr": scr_points(),
        **cls_er(),
        **candidates(),
    }


def lead(by_task: Sequence[float]) -> float:
    """Return the accuracy on the latest task minus the mean of the others."""
    return by_task[-1] - mean(by_task[:-1])


def scr_points() -> dict[str, float]:
    """Return the best validation accuracy of FPF after SCR, by whether the output layer was named."""
    grid = search("seq-mnist", 500)["grid"]["fpf+scr"]
    return {
        name: max(e["validation_accuracy"] for e in grid if ("groups" in e["point"]) == named)
        for name, named in (("named", True), ("automatic", False))
    }


def cls_er() -> dict[str, Any]:
    """Return CLS-ER with the settings of its authors, compared with their figures."""
    record = benchmark_record("cls-er-published.json")
    rows, gaps = [], {}
    for row in record["rows"]:
        target = published.find("cls-er-authors", row["stream"], buffer=row["buffer"])["cls_er"]
        gaps[row["buffer"]] = mean(row["accuracies"]) - target.mean
        rows.append([str(row["buffer"]), f"{target.mean:.2f} ± {target.std:.2f}", spread(row["accuracies"], 2),
                     str(len(row["accuracies"])), f"{gaps[row['buffer']]:+.2f}"])  # fmt: skip
    return {
        "cls_er_table": markdown_table(["buffer", "authors", "ours", "seeds", "difference"], rows),
        "cls_er_gaps": gaps,
        "cls_er": record,
    }


def candidates() -> dict[str, Any]:
    """Return the candidates for CLS-ER's defaults, and X-DER RPC with and without its constraint on past classes."""
    averages, constraint = (benchmark_record(name) for name in ("cls-er-averages.json", "xder-constraint.json"))
    found: dict[tuple[float, float], dict[str, float]] = {}
    for row in averages["rows"]:
        found.setdefault((row["consistency"], row["decay"]), {})[row["stream"]] = mean(row["accuracies"])
    rows = [
        [f"{consistency:g}", f"{decay:g}", *(f"{values[stream]:.1f}" for stream in STREAMS)]
        for (consistency, decay), values in found.items()
    ]
    with_past, without_past = (row["accuracies"] for row in constraint["rows"])
    differences = [one - other for one, other in zip(with_past, without_past, strict=True)]
    return {
        "averages": averages,
        "averages_table": markdown_table(["λ", "decays", *STREAMS.values()], rows),
        "averages_best": max(found, key=lambda candidate: mean(found[candidate].values())),
        "averages_seeds": {row["stream"]: len(row["accuracies"]) for row in averages["rows"]},
        "constraint": constraint,
        "constraint_accuracies": (with_past, without_past),
        "constraint_gain": Gain(mean(differences), stdev(differences) / len(differences) ** 0.5),
    }
