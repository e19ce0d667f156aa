"""Compute the table of README.md: accuracy and cost of a few rows of every column."""

from __future__ import annotations

from typing import Any

from forgetless.paper import published
from pages.rows import BENCHMARKS, COLUMNS, MASKED, STREAMS, column_rows, costs_and_accuracies
from pages.template import markdown_table, render

BEGIN, END = "<!-- by benchmarks/tables.py -->\n", "<!-- end -->\n"
ROWS = {
    "plain SGD": "sgd",
    "ER, replay at every step": "er",
    "DER++": "derpp",
    "DER++, then FPF": "fpf+derpp",
    "k-FPF-CE": "k-fpf-ce",
    "k-FPF-KD": "k-fpf-kd",
    "k-FPF-KD around `masked`": MASKED,
}
SIMILAR = 0.05  # relative difference up to which two costs count as about the same


def values() -> dict[str, Any]:
    """Return the values of the template."""
    columns = {column: costs_and_accuracies(column_rows(*column)) for column in COLUMNS}
    rows = []
    for name, row in ROWS.items():
        cells = [f"{points[row].accuracy:.1f}" if row in points else "–" for points in columns.values()]
        costs = [f"{points[row].tflops / 1000:.2f}" if row in (points := columns[s, 500]) else "–" for s in STREAMS]
        rows.append([name, *cells, ", ".join(costs)])
    best = []
    for stream, buffer in COLUMNS:
        paper = published.find("table1", stream, buffer=buffer).items()
        best.append(f"{max(target.mean for label, target in paper if label != 'joint'):.1f}")
    rows.append(["the paper's best continual method", *best, ""])
    header = ["", *(f"{stream}, {buffer}" for stream, buffer in COLUMNS), "PFLOPs"]
    costlier = [
        (stream, row)
        for stream in STREAMS
        for row in ROWS.values()
        if row in columns[stream, 500]
        and row in columns[stream, 200]
        and columns[stream, 200][row].tflops / columns[stream, 500][row].tflops - 1 > SIMILAR
    ]
    return {
        "table": markdown_table(header, rows),
        "seeds": seeds_sentence(),
        "costlier": costlier,
        "costs": {stream: columns[stream, 200][MASKED].tflops / 1000 for stream in ("seq-cifar10", "seq-organamnist")},
        "masked": MASKED,
    }


def seeds_sentence() -> str:
    """Return the number of seeds of the streams, and the rows that have another number."""
    usual: dict[int, list[str]] = {}
    exceptions = []
    for stream in STREAMS:
        counts: dict[tuple[str, int], int] = {}
        for buffer in (500, 200):
            rows = column_rows(stream, buffer)
            runs = {name: len(rows.get(row) or rows.get(f"fpf+{row}", [])) for name, row in ROWS.items()}
            counts |= {(name, buffer): count for name, count in runs.items() if count}
        most = max(counts.values(), key=list(counts.values()).count)
        usual.setdefault(most, []).append(stream)
        exceptions += [f"{name} on {stream}, {buffer}: {n}" for (name, buffer), n in counts.items() if n != most]
    sentence = " and ".join(f"{count} seeds on {', '.join(streams)}" for count, streams in usual.items())
    return f"{sentence} ({'; '.join(exceptions)})" if exceptions else sentence


def page() -> str:
    """Return the README with a new table between its markers."""
    before, _, rest = (BENCHMARKS.parent / "README.md").read_text().partition(BEGIN)
    return before + BEGIN + render("readme-table.md", values()) + END + rest.partition(END)[2]
