"""Draw the pictures of the pages from the committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forgetless.paper.studies import ITEMS
from forgetless.reports import charts
from forgetless.reports.rows import table_rows
from pages.results import panels
from pages.rows import COLUMNS, DOCS, CostAndAccuracy, benchmark_record, column_rows, costs_and_accuracies
from pages.studies import measured

STUDIES = ("parameters", "k-tau", "buffer-epochs", "bn-dynamics", "filter-dynamics")
STEPS = ("sgd", "er", "derpp", "finetuning")
ORANGE, BLUE, GREY = "#ea580c", "#2563eb", "#6b7280"


def draw_all() -> None:
    """Draw every picture into docs/."""
    draw_speed(DOCS / "speed.svg")
    for stream, buffer in COLUMNS:
        draw_cost(stream, buffer, DOCS / f"cost-{stream}-{buffer}.svg")
    draw_dynamics()
    draw_studies()
    draw_profile("seq-cifar10")


def draw_speed(file: Path) -> None:
    """Draw the milliseconds per step as bars: eager, captured, and captured in eight lanes."""
    pyplot = svg_pyplot()
    recorded = benchmark_record("speed-h200.json")["rows"]
    rows = [row for row in recorded if (row["network"], row["size"]) == ("resnet18", 32)]
    cases = {"eager": (False, 1), "captured": (True, 1), "captured, eight lanes": (True, 8)}
    figure, axes = pyplot.subplots(figsize=(7, 3.2))
    for index, (label, case) in enumerate(cases.items()):
        heights = [
            next(r["milliseconds"] for r in rows if r["way"] == step and (r["captured"], r["lanes"]) == case)
            for step in STEPS
        ]
        bars = axes.bar([x + 0.27 * (index - 1) for x in range(len(STEPS))], heights, 0.26, label=label)
        axes.bar_label(bars, fmt="%.3g", fontsize=8)
    axes.set_yscale("log")
    axes.set_xticks(range(len(STEPS)), STEPS)
    axes.set_ylabel("ms per run and step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, 1.2))
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def draw_cost(stream: str, buffer: int, file: Path) -> None:
    """Draw accuracy by FLOPs with the Pareto front; rows far below it are listed in the label of the axis."""
    pyplot = svg_pyplot()
    points = costs_and_accuracies(column_rows(stream, buffer))
    front = sorted(
        point
        for point in points.values()
        if not any(other.tflops <= point.tflops and other.accuracy > point.accuracy for other in points.values())
    )
    limit = min(front[0].accuracy, front[-1].accuracy / 2)  # the front rises
    far = {row: point for row, point in points.items() if point.accuracy < limit}
    figure, axes = pyplot.subplots(figsize=(7, 4.8))
    axes.plot(*zip(*front, strict=True), "--", color="0.6", linewidth=1, zorder=0)
    near = {row: point for row, point in sorted(points.items(), key=lambda item: item[1]) if row not in far}
    colours = {row: ORANGE if row.startswith("k-fpf") else BLUE if row.startswith("fpf+") else GREY for row in near}
    for row, point in near.items():
        axes.plot(*point, "o", color=colours[row], markersize=5)
    below = ", ".join(f"{row} {point.accuracy:.0f}" for row, point in far.items())
    axes.set_xlabel(f"TFLOPs of the whole run (not shown, far below: {below})" if far else "TFLOPs of the whole run")
    axes.set_ylabel("accuracy (%)")
    axes.margins(x=0.15, y=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    label_points(axes, near, colours)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def label_points(axes: Any, points: dict[str, CostAndAccuracy], colours: dict[str, str]) -> None:
    """Label each point at the place around it that covers the fewest labels and points."""
    axes.figure.canvas.draw()
    marks = [axes.transData.transform(point) for point in points.values()]
    placed: list[Any] = []
    places = [(6, -2, "left"), (-6, -2, "right"), (0, 7, "center"), (0, -11, "center")]
    places += [(dx, dy, side) for dy in (6, -9, 14, -17, 22, -25) for dx, side in ((5, "left"), (-5, "right"))]
    for row, point in points.items():
        candidates = []
        for order, (dx, dy, side) in enumerate(places):
            text = axes.annotate(
                row, point, (dx, dy), textcoords="offset points", fontsize=7, color=colours[row], ha=side
            )
            box = text.get_window_extent()
            covered = sum(box.overlaps(other) for other in placed) + sum(
                box.padded(3).contains(*mark) for mark in marks
            )
            candidates.append((covered, order, text, box))
        candidates.sort(key=lambda candidate: candidate[:2])
        placed.append(candidates[0][3])
        for *_, text, _box in candidates[1:]:
            text.remove()


def draw_dynamics() -> None:
    """Draw the panels of the paper's Figure 1."""
    for panel in panels():
        title = panel.name.partition(" (")[0]
        first = min(panel.runs, key=lambda run: run.settings["seed"])
        by_task = charts.dynamics(first, f"{title}: tasks", "tasks")
        charts.save(by_task, DOCS, f"dynamics-{panel.stem}-tasks", ("svg",))
        if first.settings["epochs"] > 1:
            charts.save(charts.dynamics(first, f"{title}: epochs"), DOCS, f"dynamics-{panel.stem}", ("svg",))


def draw_studies() -> None:
    """Draw the figures of docs/studies.md."""
    for item in STUDIES:
        lines = measured(item)
        for name, picture in ITEMS[item].draw(lines).items():
            charts.save(picture, DOCS, f"study-{item}-{name}", ("svg",))


def draw_profile(stream: str) -> None:
    """Draw S_g of ER, a picture of docs/method.md."""
    (row,) = table_rows(column_rows(stream, 500)["fpf+er"])
    picture = charts.profile(row.sensitivity, "ER on Seq-CIFAR-10, mean of five seeds")
    charts.save(picture, DOCS, f"profile-{stream}", ("svg",))


def svg_pyplot() -> Any:
    """Return pyplot set to draw the same SVG every time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "forgetless"
    from matplotlib import pyplot

    return pyplot
