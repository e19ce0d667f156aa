"""Compute the values of docs/reliability.md: crashes, corrupt files, the cost of checkpoints, memory over time."""

from __future__ import annotations

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
    return {
        "soak": soak,
        "methods": len({run["method"] for run in soak["each"]}),
        "fuzz": fuzz,
        "crashed": sum(counts["crashed"] for counts in fuzz["by_kind"].values()),
        "outcomes": markdown_table(header, outcomes),
        "cost": cost,
        "repeats": len(cost["seconds"]["with"]),
        "long": long,
        "first_peak": int(peaks["20"]) / 1000,
        "last_peak": int(peaks[str(long["tasks"])]) / 1000,
    }
