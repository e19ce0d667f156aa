"""Compute the values of docs/speed.md on lanes as one computation, from the record of ``benchmarks/fused.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pages.rows import benchmark_record
from pages.template import markdown_table

STREAMS, MIX, ANY, WHOLE = "streams", "best mix, lanes first", "any layout", "whole step"
CASES = ((8, 32), (8, 64), (16, 32), (32, 32))  # lanes and batch
GOAL = 1.3  # how many times as fast as streams a part must be to be built
TOTAL = "all of these"
Part = dict[str, float]  # milliseconds by variant


def values() -> dict[str, Any]:
    """Return the values of the section."""
    record = benchmark_record("fused-h200.json")
    measured = {case: parts(record, *case) for case in CASES}
    first, whole = measured[CASES[0]], {case: found.pop(WHOLE)[STREAMS] for case, found in measured.items()}
    for found in measured.values():
        found[TOTAL] = {name: sum(part[name] for part in found.values()) for name in (STREAMS, MIX, ANY)}
    return {
        "record": record,
        "goal": GOAL,
        "table": ratio_table(measured),
        "convolutions": case_table(record, "convolutions"),
        "norms": case_table(record, "batch norm"),
        "ratios": {name: part[STREAMS] / part[MIX] for name, part in first.items()},
        "any_layout": {lanes: ratio(measured[lanes, 32]["convolutions"], ANY) for lanes in (8, 16, 32)},
        "total": first[TOTAL],
        "best": MIX,
        "whole": whole[CASES[0]],
        "per_run": {lanes: whole[lanes, 32] / lanes for lanes in (8, 16, 32)},
        "convolutions_save": (first["convolutions"][STREAMS] - first["convolutions"][MIX]) / whole[CASES[0]],
        "augmentation_share": first["augmentation"][STREAMS] / whole[CASES[0]],
    }


def parts(record: Mapping[str, Any], lanes: int, batch: int) -> dict[str, Part]:
    """Return the milliseconds of each part of a step, by variant."""
    found = {}
    for entry in record["summary"]:
        if (entry["lanes"], entry["batch"]) == (lanes, batch):
            found[entry["part"]] = {
                **entry["milliseconds"],
                ANY: any_layout(record["rows"], lanes, batch, entry["part"]),
            }
    return found


def any_layout(rows: Sequence[Mapping[str, Any]], lanes: int, batch: int, part: str) -> float:
    """Return the milliseconds of a part if every problem is computed in its fastest way, whatever the layout."""
    times: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if (row["lanes"], row["batch"], row["part"]) == (lanes, batch, part):
            times.setdefault((row["problem"], row["direction"]), []).append(row["occurrences"] * row["microseconds"])
    return sum(map(min, times.values())) / 1000


def ratio(part: Part, name: str) -> float:
    """Return how many times as fast as streams a variant is."""
    return part[STREAMS] / part[name]


def ratio_table(measured: Mapping[tuple[int, int], Mapping[str, Part]]) -> str:
    """Return how many times as fast as streams each part is, and its milliseconds with eight lanes at batch 32."""
    lines = []
    for name, first in measured[CASES[0]].items():
        for variant in (MIX, ANY) if name in {"convolutions", TOTAL} else (MIX,):
            ratios = [f"{ratio(found[name], variant):.2f}" for found in measured.values()]
            label = f"{name}, any layout" if variant == ANY else name
            lines.append([label, f"{first[STREAMS]:.2f}", f"{first[variant]:.2f}", *ratios])
    head = ["", "ms on streams", "ms at once", *(f"{lanes} lanes, batch {batch}" for lanes, batch in CASES)]
    return markdown_table(head, lines)


def case_table(record: Mapping[str, Any], part: str) -> str:
    """Return the microseconds of each problem of a part with eight lanes at batch 32, by variant."""
    times: dict[tuple[str, str, int], dict[str, float]] = {}
    for row in record["rows"]:
        if (row["lanes"], row["batch"]) == CASES[0] and row["part"] == part:
            key = row["problem"].removeprefix("batch norm").lstrip(", "), row["direction"], row["occurrences"]
            times.setdefault(key, {})[row["variant"]] = row["microseconds"]
    variants = list(next(iter(times.values())))
    lines = []
    for (problem, direction, occurrences), by_variant in times.items():
        best = min(by_variant.values())
        cells = [f"**{value:.0f}**" if value == best else f"{value:.0f}" for value in by_variant.values()]
        name = f"{problem}, {direction}" if part == "convolutions" else problem
        lines.append([name, str(occurrences), *cells])
    return markdown_table(["", "per step", *variants], lines)
