"""Compute the values of docs/reliability.md: crashes, corrupt files, repairs, checkpoints, memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pages.rows import benchmark_record
from pages.template import markdown_table


def values() -> dict[str, Any]:
    """Return the values of the template."""
    soak, fuzz, cost, long = (
        benchmark_record(f"{name}-cpu.json") for name in ("soak", "fuzz", "checkpoints", "long-stream")
    )
    header = ["file", "read correctly", "rejected with an error", "anything else"]
    outcomes = [
        [kind, *(str(c[name]) for name in ("read", "refused", "crashed"))] for kind, c in fuzz["by_kind"].items()
    ]
    peaks = long["peak_kilobytes"]
    no_harm, fresh = benchmark_record("no-harm.json"), benchmark_record("no-harm-fresh.json")
    kinds = ("combinations", "gain", "within noise", "harm")
    harmed = [entry for entry in fresh["runs"] if entry["verdict"] == "harm"]
    held_out = [entry["held_out"]["examples"] for entry in harmed]
    changes = []
    for name, row in fresh["summary"].items():
        points = (row["median_change"], min(row["worst"].values()))
        changes.append([name, *(str(row[kind]) for kind in kinds), *(f"{change:+.1f}" for change in points)])
    return {
        "soak": soak,
        "methods": len({run["method"] for run in soak["each"]}),
        "fuzz": fuzz,
        "crashed": sum(counts["crashed"] for counts in fuzz["by_kind"].values()),
        "outcomes": markdown_table(header, outcomes),
        "no_harm": no_harm,
        "revised": no_harm["summary"]["all"],
        "revised_capacities": [str(run["capacity"]) for run in no_harm["runs"] if run["verdict"] == "harm"],
        "fresh_record": fresh,
        "fresh": fresh["summary"]["all"],
        "fresh_table": markdown_table(["trainings", "number", *kinds[1:], "median change", "worst change"], changes),
        "seeds": [entry["seed"] for entry in fresh["runs"]],
        "lower_scores": sum(entry["score"]["change"] < 0 for entry in harmed),
        "harmed": [describe(entry) for entry in harmed],
        "few_held_out": max(held_out) < 13 and [e["score"]["change"] > 0 for e in harmed] == [False, True, False, True],
        "held_out_range": f"{min(held_out)} to {max(held_out)}",
        "cost": cost,
        "repeats": len(cost["seconds"]["with"]),
        "long": long,
        "first_peak": int(peaks["20"]) / 1000,
        "last_peak": int(peaks[str(long["tasks"])]) / 1000,
    }


def describe(entry: Mapping[str, Any]) -> str:
    """Return what a repair changed in one training."""
    score, loss = entry["score"], entry["loss"]
    return (
        f"seed {entry['seed']} ({entry['network']}, a buffer of {entry['capacity']} examples) went from "
        f"{score['before']:.1f} to {score['after']:.1f}, and its loss from {loss['before']:.2f} to {loss['after']:.2f}"
    )
