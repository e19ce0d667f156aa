"""The charts of the HTML page, as SVG. Imports neither torch nor matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from forgetless.config.units import quantity
from forgetless.experiments.record import Record
from forgetless.reports.charts import THRESHOLDS, Point, group_changes, learning_curves
from forgetless.reports.rows import Row, pareto_front

COLOURS = ("#3b82f6", "#ea580c", "#16a34a", "#8b5cf6", "#e11d48", "#0891b2", "#ca8a04", "#65a30d", "#c026d3", "#64748b")
GREY = "#a8a29e"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 340, 44, 180, 12, 36  # of a chart, and its margins
MARGIN = 10  # left and right of the lines of a chart


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a linear map from data (low to high) to pixels (start to end)."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


PERCENT = scale(0, 100, HEIGHT - BOTTOM, TOP)
PERCENT_TICKS = tuple((PERCENT(percent), str(percent)) for percent in (0, 25, 50, 75, 100))


def anytime(rows: Sequence[Row], colours: Mapping[str, str]) -> str:
    """Draw the accuracy on the tasks so far after each task; rows without a colour are grey and have no label."""
    series = learning_curves(rows)
    if not series:
        return ""
    tasks = max(len(values) for values in series.values())
    x = scale(0, tasks - 1, LEFT + MARGIN, WIDTH - RIGHT - MARGIN)
    curves = {label: [(x(t), PERCENT(value)) for t, value in enumerate(values)] for label, values in series.items()}
    drawn = [_line(points, GREY) for label, points in curves.items() if label not in colours]
    drawn.append(_labelled({label: points for label, points in curves.items() if label in colours}, colours))
    for label in [label for label in series if label in colours]:
        for t, ((left, top), value) in enumerate(zip(curves[label], series[label], strict=True)):
            drawn.append(_dot(left, top, 3, colours[label], f"{label}, after task {t + 1}: {value:.1f} %"))
    ticks = [(x(t), f"{'task ' if t == 0 else ''}{t + 1}") for t in range(0, tasks, math.ceil(tasks / 20))]
    return _chart("accuracy after each task", PERCENT_TICKS, ticks, drawn)


def cost(rows: Sequence[Row], colours: Mapping[str, str]) -> str:
    """Draw accuracy over FLOPs, and a line through the rows that no other row beats in both."""
    costs = {row.label: math.log10(max(row.tflops * 1e12, 1)) for row in rows}
    low, high = min(costs.values()) - 0.1, max(costs.values()) + 0.1
    x = scale(low, high, LEFT, WIDTH - RIGHT)
    places = {row.label: (x(costs[row.label]), PERCENT(row.accuracy)) for row in rows}
    drawn = [f'<g class="front">{_line([places[row.label] for row in pareto_front(rows)], GREY)}</g>']
    for row in rows:
        (left, top), colour = places[row.label], colours.get(row.label, GREY)
        ends = PERCENT(min(100, row.accuracy + row.std)), PERCENT(max(0, row.accuracy - row.std))
        drawn.append(f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" stroke="{colour}"/>')
        title = f"{row.label}: {row.accuracy:.1f} %, {quantity(row.tflops * 1e12, 'FLOPs')}"
        drawn.append(_dot(left, top, 5, colour, title))
    named = [row.label for row in rows if row.label in colours]
    for label, top in zip(named, place_labels([places[label] for label in named]), strict=True):
        drawn.append(_label(places[label][0] + 9, top, label, colours[label]))
    steps = (1, 2, 5) if high - low < 3 else (1,)
    marks = [10**power * step for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    ticks = [(x(math.log10(mark)), quantity(mark, "FLOPs")) for mark in marks if low <= math.log10(mark) <= high]
    return _chart("accuracy and FLOPs", PERCENT_TICKS, ticks, drawn)


def profile(sensitivity: Mapping[str, float]) -> str:
    """Draw S_g of each group as a bar, darker above each threshold; the longest bar fills the width."""
    longest = max(sensitivity.values()) or 1.0
    lines = []
    for i, (group, score) in enumerate(sensitivity.items()):
        y = 8 + 26 * i
        length = max(1.0, score / longest * (WIDTH - 190))
        shade = "#c2410c" if score > THRESHOLDS["FPF"] else "#fb923c" if score > THRESHOLDS["k-FPF"] else GREY
        lines.append(f'<text x="88" y="{y + 13}" text-anchor="end">{escape(group)}</text>')
        lines.append(f'<rect x="96" y="{y}" width="{length:.1f}" height="18" rx="3" fill="{shade}"/>')
        lines.append(f'<text x="{102 + length:.1f}" y="{y + 13}">{score:.2f}</text>')
    return _svg(26 * len(sensitivity) + 10, "forgetting profile", lines)


def dynamics(record: Record) -> str:
    """Draw the change of each group over every epoch, or return "" if there are fewer than three epochs."""
    changes = group_changes(record)
    positive = [value for values in changes.series.values() for value in values if value > 0]
    epochs = len(record.epoch_changes)
    if epochs < 3 or not positive:
        return ""
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    x = scale(0, epochs - 1, LEFT + MARGIN, WIDTH - RIGHT - MARGIN)
    y = scale(low, max(high, low + 1), HEIGHT - BOTTOM, TOP)
    drawn = [
        f'<line class="task" x1="{x(start):.1f}" x2="{x(start):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        for start in list(changes.starts)[1:]
    ]
    drawn += [
        f'<path d="M{x(index):.1f},{TOP + 8} l-5,-8 h10 z" fill="{COLOURS[4]}"><title>detected</title></path>'
        for index in changes.detected
    ]
    curves = {
        group: [(x(index), y(math.log10(max(value, 10.0**low)))) for index, value in enumerate(values)]
        for group, values in changes.series.items()
    }
    drawn.append(_labelled(curves, {group: COLOURS[i % len(COLOURS)] for i, group in enumerate(curves)}))
    powers = [(y(power), f"1e{power}") for power in range(low, max(high, low + 1) + 1)]
    starts = list(changes.starts.items())[:: math.ceil(len(changes.starts) / 20)]
    ticks = [(x(index), f"{'task ' if task == 1 else ''}{task}") for index, task in starts]
    return _chart("change of each group over time", powers, ticks, drawn)


def matrix(values: Sequence[Sequence[float]]) -> str:
    """Draw the accuracy on each task after each task: the darker, the higher."""
    size = max(len(values[0]), len(values))
    cell = 200 / size
    drawn = []
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            place = f'x="{j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            title = f"<title>after task {i + 1}, on task {j + 1}: {value:.1f} %</title>"
            drawn.append(f'<rect {place} fill="{COLOURS[0]}" fill-opacity="{value / 100:.2f}">{title}</rect>')
            if size <= 6:
                middle = f'x="{(j + 0.5) * cell:.1f}" y="{(i + 0.5) * cell + 4:.1f}"'
                drawn.append(f'<text {middle} text-anchor="middle">{value:.0f}</text>')
    return _svg(round(cell * len(values)), "accuracy matrix", drawn, width=200)


def place_labels(points: Sequence[Point], width: float = 150, height: float = 13) -> list[float]:
    """Return a y for the label of each point: its own, or as little below as keeps labels from overlapping."""
    placed: dict[int, Point] = {}
    for i in sorted(range(len(points)), key=lambda i: points[i][1]):
        x, y = points[i]
        while any(abs(x - other_x) < width and abs(y - other_y) < height for other_x, other_y in placed.values()):
            y += 1
        placed[i] = (x, y)
    return [placed[i][1] for i in range(len(points))]


def _labelled(curves: Mapping[str, Sequence[Point]], colours: Mapping[str, str]) -> str:
    """Return a line per name, with the name at its right end."""
    heights = place_labels([(0.0, points[-1][1]) for points in curves.values()])
    return "".join(
        _line(points, colours[name]) + _label(WIDTH - RIGHT + 6, top, name, colours[name])
        for (name, points), top in zip(curves.items(), heights, strict=True)
    )


def _line(points: Sequence[Point], colour: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" stroke="{colour}"/>'


def _dot(x: float, y: float, radius: float, colour: str, title: str) -> str:
    title = f"<title>{escape(title)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}">{title}</circle>'


def _label(x: float, y: float, label: str, colour: str) -> str:
    """Return a label, cut to the room next to a chart; its title is the full text."""
    text = escape(label if len(label) <= 28 else f"{label[:27]}…")
    title = f"<title>{escape(label)}</title>"
    return f'<text x="{x:.1f}" y="{y + 4:.1f}" style="fill:{colour}">{text}{title}</text>'


def _chart(name: str, left: Iterable[tuple[float, str]], below: Iterable[tuple[float, str]], inside: list[str]) -> str:
    """Return a chart: grid lines with their labels on the left, ticks below, and its content."""
    lines = []
    for y, text in left:
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for x, text in below:
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{escape(text)}</text>')
    return _svg(HEIGHT, name, lines + inside)


def _svg(height: float, name: str, inside: list[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">{"".join(inside)}</svg>'
