"""The charts of the HTML page, as SVG. Imports neither torch nor matplotlib.

Colours are classes of ``page.html``: one per family (see ``rows.family``), in three shades.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from forgetless.config.units import quantity, si_prefix
from forgetless.experiments.record import Record
from forgetless.reports.charts import THRESHOLDS, Point, group_changes, group_family, learning_curves, numbered
from forgetless.reports.rows import Row, family, pareto_front

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 460, 310, 48, 14, 46  # of a chart, and its margins; page.html clips lines to them
LETTER, LINE = 7.2, 15  # width and height of the letters of a label
NAMED = 10  # rows with a label in a chart
MARKERS = ("M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-4,-4h8v8h-8z", "M0,-5l5,5l-5,5l-5,-5z", "M0,-5l5,9h-10z")
Ticks = Sequence[tuple[float, str]]


class Style(NamedTuple):
    """How a row looks: the classes of its colour, the outline of its marker, and whether charts name it."""

    colour: str
    marker: str
    named: bool


def styles(families: Mapping[str, str]) -> dict[str, Style]:
    """Return the style of each label from its family, the most important label first; only ten are named."""
    first = list(families)[:NAMED]
    return {
        label: Style(
            f"{name} shade{number % 3}{'' if label in first else ' faint'}", MARKERS[number % 4], label in first
        )
        for label, (name, number) in numbered(families).items()
    }


def row_styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Return the style of each row by label; the best rows of each method are named first."""
    ranked = [row.label for row in sorted(rows, key=lambda row: -row.accuracy)]
    numbers = numbered({label: label.split(",")[0] for label in ranked})
    return styles({label: family(label) for label in sorted(ranked, key=lambda label: numbers[label][1])})


def far_below(rows: Sequence[Row]) -> dict[str, float]:
    """Return the accuracies that would squeeze the other rows into the top of a chart.

    They are below half of the best, or further below the lower quartile than three times its distance to the best.
    """
    ranked = sorted(rows, key=lambda row: -row.accuracy)
    best, quartile = ranked[0].accuracy, ranked[3 * len(ranked) // 4].accuracy
    limit = max(best / 2, quartile - 3 * (best - quartile) - 5)  # 5 points, for rows that are all alike
    return {row.label: row.accuracy for row in ranked if row.accuracy < limit}


def scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a linear map from data (low to high) to pixels (start to end)."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def round_numbers(low: float, high: float) -> list[float]:
    """Return two to seven round numbers at equal steps; the first is at most ``low``, the last at least ``high``."""
    power = 10.0 ** math.floor(math.log10(max(high - low, 0.5) / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= high - low)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def anytime(rows: Sequence[Row], looks: Mapping[str, Style]) -> str:
    """Draw the accuracy on the tasks so far after each task."""
    series = learning_curves(rows)
    if not series:
        return ""
    far = far_below(rows)
    shown = {label: values for label, values in series.items() if label not in far} or series
    y, levels = _percent_axis([value for values in shown.values() for value in values])
    tasks, right = max(map(len, series.values())), _room(label for label in shown if looks[label].named)
    x = scale(0, tasks - 1, LEFT + 8, WIDTH - right - 8)
    curves = {label: [(x(t), y(value)) for t, value in enumerate(values)] for label, values in series.items()}
    titles = {
        label: [f"{label}, after task {t}: {value:.1f} %" for t, value in enumerate(values, 1)]
        for label, values in shown.items()
        if looks[label].named
    }
    ticks = [(x(t), str(t + 1)) for t in range(0, tasks, math.ceil(tasks / 10))]
    drawn = _curves(curves, looks, right, titles)
    return _chart("accuracy after each task", "task", levels, ticks, drawn, right)


def cost(rows: Sequence[Row], looks: Mapping[str, Style]) -> str:
    """Draw accuracy over FLOPs, and a line through the rows that no other row beats in both."""
    far = far_below(rows)
    shown = sorted((row for row in rows if row.label not in far), key=lambda row: looks[row.label].named)
    ends = {row.label: [min(100.0, row.accuracy + row.std), max(0.0, row.accuracy - row.std)] for row in shown}
    y, levels = _percent_axis([end for pair in ends.values() for end in pair])
    costs = {row.label: math.log10(max(row.tflops * 1e12, 1)) for row in rows}
    margin = 0.03 + 0.06 * (max(costs.values()) - min(costs.values()))
    low, high = min(costs.values()) - margin, max(costs.values()) + margin
    x = scale(low, high, LEFT, WIDTH - 12)
    places = {row.label: (x(costs[row.label]), y(row.accuracy)) for row in rows}
    named = {label: place for label, place in places.items() if label in ends and looks[label].named}
    labels = place_labels(named, places.values())
    drawn = [_line([places[row.label] for row in pareto_front(rows)], "front")]
    for row in shown:
        (left, top), look, (upper, lower) = places[row.label], looks[row.label], map(y, ends[row.label])
        bar = f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{upper:.1f}" y2="{lower:.1f}"/>'
        title = f"{row.label}: {row.accuracy:.1f} %, {quantity(row.tflops * 1e12, 'FLOPs')}"
        text = _named(row.label, labels[row.label], (left, top)) if row.label in labels else ""
        drawn.append(f'<g class="series {look.colour}">{bar}{_mark((left, top), look.marker, title)}{text}</g>')
    marks = [10.0**power * step for power in range(math.floor(low), math.ceil(high) + 1) for step in (1, 2, 5)]
    ticks = [(x(math.log10(mark)), si_prefix(mark)) for mark in marks if low <= math.log10(mark) <= high]
    ticks = ticks[:: len(ticks) // 8 + 1] or [(x((low + high) / 2), si_prefix(10 ** ((low + high) / 2)))]
    return _chart("accuracy and FLOPs", "FLOPs of the whole run", levels, ticks, drawn, 12)


def profile(sensitivity: Mapping[str, float]) -> str:
    """Draw S_g of each group as a bar in the colour of the repair that chooses it; bars above 5 are cut."""
    left, bottom = _room(sensitivity), 26 + 26 * len(sensitivity)
    longest = min(max(*sensitivity.values(), 1.0), 5.0)
    x = scale(0, longest, left, WIDTH - 110)
    lines = []
    for name, threshold in THRESHOLDS.items():
        lines.append(f'<line class="grid" x1="{x(threshold):.1f}" x2="{x(threshold):.1f}" y1="18" y2="{bottom}"/>')
        lines.append(_text(x(threshold) + 3, 12, f"{name}: {threshold:g}", "end" if name == "k-FPF" else "start"))
    for y, (group, score) in zip(range(26, bottom, 26), sensitivity.items(), strict=True):
        end, colour = x(min(score, longest)), group_family(score)
        lines.append(_text(left - 6, y + 13, _cut(group), "end"))
        lines.append(f'<rect class="{colour} shade0" x="{left}" y="{y}" width="{end - left:.1f}" height="18"/>')
        lines.append(_text(end + 5, y + 13, f"{score:.2f}{' (bar cut)' if score > longest else ''}"))
    return _svg(bottom, "forgetting profile", lines)


def dynamics(record: Record) -> str:
    """Draw the change of each group over every epoch, or return "" if there are fewer than three epochs."""
    changes = group_changes(record)
    positive = [value for values in changes.series.values() for value in values if value > 0]
    epochs = len(record.epoch_changes)
    if epochs < 3 or not positive:
        return ""
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    right = _room(changes.series)
    x = scale(0, epochs - 1, LEFT + 8, WIDTH - right - 8)
    y = scale(low, max(high, low + 1), HEIGHT - BOTTOM, TOP)
    drawn = [
        f'<line class="task" x1="{x(start):.1f}" x2="{x(start):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        for start in list(changes.starts)[1:]
    ]
    drawn += [
        f'<path class="shift" d="M{x(index):.1f},{TOP + 8} l-5,-8 h10 z"><title>detected</title></path>'
        for index in changes.detected
    ]
    curves = {
        group: [(x(index), y(math.log10(max(value, 10.0**low)))) for index, value in enumerate(values)]
        for group, values in changes.series.items()
    }
    drawn += _curves(curves, styles({group: group_family(record.sensitivity.get(group)) for group in curves}), right)
    powers = [(y(power), f"1e{power}") for power in range(low, max(high, low + 1) + 1)]
    starts = list(changes.starts.items())[:: math.ceil(len(changes.starts) / 10)]
    ticks = [(x(index), str(task)) for index, task in starts]
    return _chart("change of each group over time", "task", powers, ticks, drawn, right)


def matrix(values: Sequence[Sequence[float]], colour: str) -> str:
    """Draw the accuracy on each task after each task: the darker, the higher."""
    size = max(len(values[0]), len(values))
    cell = 200 / size
    drawn = []
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            place = f'x="{j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            title = f"<title>after task {i + 1}, on task {j + 1}: {value:.1f} %</title>"
            drawn.append(f'<rect {place} fill-opacity="{0.6 * value / 100:.2f}">{title}</rect>')
            if size <= 6:
                drawn.append(_text((j + 0.5) * cell, (i + 0.5) * cell + 4, f"{value:.0f}", "middle"))
    return _svg(round(cell * len(values)), "accuracy matrix", [f'<g class="{colour} shade0">{"".join(drawn)}</g>'], 200)


def place_ends(heights: Sequence[float], low: float = TOP, high: float = HEIGHT - BOTTOM) -> list[float]:
    """Return heights a line apart between low and high, as close to the given ones as that allows (least squares)."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    blocks: list[list[float]] = []  # neighbours that touch share the mean of where each would put the first of all
    for rank, i in enumerate(order):
        blocks.append([heights[i] - rank * LINE])
        while len(blocks) > 1 and sum(blocks[-2]) / len(blocks[-2]) >= sum(blocks[-1]) / len(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    firsts = [sum(block) / len(block) for block in blocks for _ in block]
    highest = high - (len(order) - 1) * LINE
    placed = {i: max(low, min(highest, firsts[rank])) + rank * LINE for rank, i in enumerate(order)}
    return [placed[i] for i in range(len(order))]


def place_labels(points: Mapping[str, Point], marks: Iterable[Point]) -> dict[str, Point]:
    """Return where each label starts: as near to its point as it covers no mark and no other label."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in marks]
    placed = {}
    for label, (x, y) in points.items():
        width = LETTER * len(_cut(label))
        sides = [side for side in (x + 9, x - 9 - width, x - width / 2) if LEFT < side < WIDTH - width]
        heights = [y + step for step in sorted(range(-240, 241, 8), key=abs) if TOP < y + step < HEIGHT - BOTTOM - 6]
        boxes = [(side, h - LINE / 2, side + width, h + LINE / 2) for h in heights for side in sides]
        free = (b for b in boxes if not any(b[0] < t[2] and t[0] < b[2] and b[1] < t[3] and t[1] < b[3] for t in taken))
        taken.append(next(free, (x + 9, y - LINE / 2, x + 9 + width, y + LINE / 2)))
        placed[label] = (taken[-1][0], taken[-1][1] + LINE / 2)
    return placed


def _percent_axis(values: Sequence[float]) -> tuple[Callable[[float], float], Ticks]:
    """Return a map from percent to pixels that fits the values, and its ticks."""
    levels = round_numbers(min(values), max(values))
    y = scale(levels[0], levels[-1], HEIGHT - BOTTOM, TOP)
    return y, [(y(level), f"{level:g} %") for level in levels]


def _curves(
    curves: Mapping[str, Sequence[Point]],
    looks: Mapping[str, Style],
    right: float,
    titles: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return a line per curve, the named ones last, with a marker per title and the label at the right end."""
    named = list(curves if titles is None else titles)
    heights = dict(zip(named, place_ends([curves[label][-1][1] for label in named]), strict=True))
    drawn = []
    for label, points in sorted(curves.items(), key=lambda item: item[0] in named):
        titled = zip(points, (titles or {}).get(label, ()), strict=False)
        marks = "".join(_mark(point, looks[label].marker, title) for point, title in titled)
        text = _named(label, (WIDTH - right + 10, heights[label]), points[-1]) if label in named else ""
        drawn.append(f'<g class="series {looks[label].colour}">{_line(points)}{marks}{text}</g>')
    return drawn


def _line(points: Sequence[Point], kind: str = "line") -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _mark(place: Point, marker: str, title: str) -> str:
    position = f"translate({place[0]:.1f},{place[1]:.1f})"
    return f'<path transform="{position}" d="{marker}"><title>{escape(title)}</title></path>'


def _named(label: str, place: Point, mark: Point) -> str:
    """Return a label, cut to the room for it, and a thin line to its mark if it is not next to it."""
    end = max(place[0] - 3, min(mark[0], place[0] + 6 * len(_cut(label))))
    line = f'<line class="leader" x1="{mark[0]:.1f}" y1="{mark[1]:.1f}" x2="{end:.1f}" y2="{place[1]:.1f}"/>'
    text = f"<g><title>{escape(label)}</title>{_text(place[0], place[1] + 4, _cut(label))}</g>"
    return (line if abs(place[1] - mark[1]) > 6 else "") + text


def _room(labels: Iterable[str]) -> float:
    """Return the width that labels need next to a chart."""
    return 16 + LETTER * max((len(_cut(label)) for label in labels), default=0)


def _cut(text: str) -> str:
    """Return a long label without the names of its settings ("er, 200"), cut to 24 letters."""
    short = re.sub(r", \w+ ", ", ", text) if len(text) > 24 else text
    return short if len(short) <= 24 else f"{short[:23]}…"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _chart(name: str, axis: str, left: Ticks, below: Ticks, inside: list[str], right: float) -> str:
    """Return a chart: grid lines with their labels on the left, ticks below, and its content."""
    lines = []
    for y, text in left:
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(_text(LEFT - 6, y + 4, text, "end"))
    lines += [_text(x, HEIGHT - BOTTOM + 18, text, "middle") for x, text in below]
    lines.append(_text((LEFT + WIDTH - right) / 2, HEIGHT - 8, axis, "middle"))
    return _svg(HEIGHT, name, lines + inside)


def _svg(height: float, name: str, inside: list[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">{"".join(inside)}</svg>'
