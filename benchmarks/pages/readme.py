"""The README's table."""

from __future__ import annotations

from forgetless.paper import published as targets
from pages.found import COLUMNS, HERE, MASKED, measured, points_of

BEGIN, END = "<!-- by benchmarks/tables.py -->\n", "<!-- end -->\n"


def headline() -> str:
    """The table of the README: a few rows of each column, and what they cost."""
    shown = {
        "plain SGD": "sgd",
        "ER, replay at every step": "er",
        "DER++": "derpp",
        "DER++, then FPF": "fpf+derpp",
        "k-FPF-CE": "k-fpf-ce",
        "k-FPF-KD": "k-fpf-kd",
        "k-FPF-KD around `masked`": MASKED,
    }
    columns = {key: points_of(measured(*key)) for key in COLUMNS}
    lines = [
        "| | " + " | ".join(f"{stream}, {buffer}" for stream, buffer in COLUMNS) + " | PFLOPs |",
        "| --- |" + " --- |" * (len(COLUMNS) + 1),
    ]
    for name, row in shown.items():
        cells = [f"{rows[row][1]:.1f}" if row in rows else "–" for rows in columns.values()]
        costs = [columns[stream, 500].get(row) for stream in dict(COLUMNS)]
        cost = ", ".join("–" if point is None else f"{point[0] / 1000:.2f}" for point in costs)
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {cost} |")
    best = []
    for stream, buffer in COLUMNS:
        paper = targets.find("table1", stream, buffer=buffer).items()
        best.append(f"{max(target.mean for label, target in paper if label != 'joint'):.1f}")
    lines.append("| the paper's best continual method | " + " | ".join(best) + " | |")
    costly = {stream: columns[stream, 200][MASKED][0] / 1000 for stream in ("seq-cifar10", "seq-organamnist")}
    usual: dict[int, list[str]] = {}
    others = []
    for stream in dict(COLUMNS):
        counts: dict[tuple[str, int], int] = {}
        for buffer in (500, 200):
            found = measured(stream, buffer)
            runs = {name: len(found.get(row) or found.get(f"fpf+{row}", [])) for name, row in shown.items()}
            counts |= {(name, buffer): count for name, count in runs.items() if count}
        most = max(counts.values(), key=list(counts.values()).count)
        usual.setdefault(most, []).append(stream)
        others += [f"{name} on {stream}, {buffer}: {n}" for (name, buffer), n in counts.items() if n != most]
    seeds = "; ".join(f"of {count} seeds on {', '.join(streams)}" for count, streams in usual.items())
    lines += [
        "",
        f"Means {seeds}{' (' + '; '.join(others) + ')' if others else ''}. With 200 images the arithmetic is about the same, but for k-FPF around `masked` on",
        f"{' and '.join(costly)}, {' and '.join(f'{cost:.2f}' for cost in costly.values())} PFLOPs.",
    ]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The README with its table as the records give it."""
    before, _, rest = (HERE.parent / "README.md").read_text().partition(BEGIN)
    return before + BEGIN + headline() + END + rest.partition(END)[2]
