"""The pictures of the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pages.found import DOCS, measured, points_of, read
from pages.results import panels


def speed(file: Path) -> None:
    """Milliseconds a step, called, captured and in lanes, as bars."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "forgetless"
    from matplotlib import pyplot

    rows = [row for row in read("speed-h200.json")["rows"] if (row["network"], row["size"]) == ("resnet18", 32)]
    ways = ("sgd", "er", "derpp", "finetuning")
    cases = {"called": (False, 1), "captured": (True, 1), "captured, eight lanes": (True, 8)}
    figure, axes = pyplot.subplots(figsize=(7, 3.2))
    for i, (label, case) in enumerate(cases.items()):
        heights = [
            next(r["milliseconds"] for r in rows if r["way"] == way and (r["captured"], r["lanes"]) == case)
            for way in ways
        ]
        bars = axes.bar([x + 0.27 * (i - 1) for x in range(len(ways))], heights, 0.26, label=label)
        axes.bar_label(bars, fmt="%.3g", fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(ways)), ways)
    axes.set_ylabel("ms per run and step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})


def cost(stream: str, buffer: int, file: Path) -> None:
    """Accuracy by FLOPs, a mark a row, FPF's and k-FPF's in colour, and the front; what is far below in words."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "forgetless"
    from matplotlib import pyplot

    points = points_of(measured(stream, buffer))
    front = sorted(
        point for point in points.values() if not any(f <= point[0] and a > point[1] for f, a in points.values())
    )
    limit = min(front[0][1], front[-1][1] / 2)  # the front rises
    far = {row: point for row, point in points.items() if point[1] < limit}
    figure, axes = pyplot.subplots(figsize=(7, 4.8))
    axes.plot(*zip(*front, strict=True), "--", color="0.6", linewidth=1, zorder=0)
    near = {row: point for row, point in sorted(points.items(), key=lambda item: item[1]) if row not in far}
    colours = {
        row: "#ea580c" if row.startswith("k-fpf") else "#2563eb" if row.startswith("fpf+") else "#6b7280"
        for row in near
    }
    for row, point in near.items():
        axes.plot(*point, "o", color=colours[row], markersize=5)
    below = ", ".join(f"{row} {accuracy:.0f}" for row, (_, accuracy) in far.items())
    axes.set_xlabel(f"TFLOPs of the whole run (not shown, far below: {below})" if far else "TFLOPs of the whole run")
    axes.set_ylabel("accuracy (%)")
    axes.margins(x=0.15, y=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    _label(axes, near, colours)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def _label(axes: Any, points: dict[str, tuple[float, float]], colours: dict[str, str]) -> None:
    """A name at each point, at the first place around it that covers least of the other names and points."""
    axes.figure.canvas.draw()
    marks = [axes.transData.transform(point) for point in points.values()]
    taken: list[Any] = []
    sides = [(6, -2, "left"), (-6, -2, "right"), (0, 7, "center"), (0, -11, "center")]
    sides += [(dx, dy, side) for dy in (6, -9, 14, -17, 22, -25) for dx, side in ((5, "left"), (-5, "right"))]
    for row, point in points.items():
        found = []
        for place, (dx, dy, side) in enumerate(sides):
            text = axes.annotate(
                row, point, (dx, dy), textcoords="offset points", fontsize=7, color=colours[row], ha=side
            )
            box = text.get_window_extent()
            covered = sum(box.overlaps(other) for other in taken) + sum(box.padded(3).contains(*mark) for mark in marks)
            found.append((covered, place, text, box))
        found.sort(key=lambda one: one[:2])
        taken.append(found[0][3])
        for *_, text, _box in found[1:]:
            text.remove()


def moving() -> None:
    from forgetless.reports import charts as figures

    for name, (stem, runs) in panels().items():
        title = name.partition(" (")[0]
        first = min(runs, key=lambda made: made.settings["seed"])
        figures.save(figures.dynamics(first, f"{title}: tasks", "tasks"), DOCS, f"dynamics-{stem}-tasks", ("svg",))
        if first.settings["epochs"] > 1:
            figures.save(figures.dynamics(first, f"{title}: epochs"), DOCS, f"dynamics-{stem}", ("svg",))


def method(stream: str) -> None:
    """S_g from the records of a column: a picture of docs/method.md, which also has one of ``moving``."""
    from forgetless.reports import charts as figures
    from forgetless.reports import rows as report

    (row,) = report.table_rows(measured(stream, 500)["fpf+er"])
    figures.save(
        figures.profile(row.sensitivity, "ER on Seq-CIFAR-10, mean of five seeds"), DOCS, f"profile-{stream}", ("svg",)
    )
