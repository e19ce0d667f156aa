"""The README's table."""

from __future__ import annotations

from forgetless import targets
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
    fewer = []
    for stream, buffer in COLUMNS:
        found = measured(stream, buffer)
        counts = {name: len(found.get(row) or found.get(f"fpf+{row}", [])) for name, row in shown.items()}
        few = {name: count for name, count in counts.items() if 0 < count < 5}
        if few and len(few) == sum(count > 0 for count in counts.values()):
            most = max(few.values())
            behind = "".join(f", {name} {count}" for name, count in few.items() if count < most)
            fewer.append(f"{stream}, {buffer}: {most}{behind}")
        else:
            fewer += [f"{name} on {stream}, {buffer}: {count}" for name, count in few.items()]
    lines += ["", f"Means of five seeds{' (' + '; '.join(fewer) + ')' if fewer else ''}."]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The README with its table as the records give it."""
    before, _, rest = (HERE.parent / "README.md").read_text().partition(BEGIN)
    return before + BEGIN + headline() + END + rest.partition(END)[2]
