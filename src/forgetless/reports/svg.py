"""The charts of the HTML page, as SVG. Imports neither torch nor matplotlib.

Colours are classes of ``page.html``: one per family (see ``rows.family``), in three shades.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from forgetless.config.units import quantity, si_prefix
from forgetless.experiments.record import Record
from forgetless.reports.charts import Point, Thresholds, group_changes, group_family, learning_curves, numbered
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
    looks = {}
    for label, (name, number) in numbered(families).items():
        colour = f"{name} shade{number % 3}{'' if label in first else ' faint'}"
        looks[label] = Style(colour, MARKERS[number % 4], label in first)
    return looks


def row_styles(rows: Sequence[Row]) -> dict[str, Style]:
    """Return the style of each row by label; the best rows of each method are named first."""
    numbers = numbered({row.label: row.name for row in sorted(rows, key=lambda row: -row.accuracy)})
    return styles({label: family(label) for label, _ in sorted(numbers.items(), key=lambda item: item[1][1])})


def far_below(rows: Sequence[Row]) -> dict[str, float]:
    """Return the accuracies below half of the best, which would squeeze the other rows into the top of a chart."""
    ranked = sorted(rows, key=lambda row: -row.accuracy)
    return {row.label: row.accuracy for row in ranked if row.accuracy < ranked[0].accuracy / 2}


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
    titles = {
        label: [f"{label}, after task {task}: {value:.1f} %" for task, value in enumerate(values, 1)]
        for label, values in shown.items()
        if looks[label].named
    }
    y, levels = _percent_axis([value for values in shown.values() for value in values])
    tasks, right = max(map(len, series.values())), _room(titles)
    x = scale(1, tasks, LEFT + 8, WIDTH - right - 8)
    curves = {label: [(x(t), y(value)) for t, value in enumerate(values, 1)] for label, values in series.items()}
    ticks = [(x(task), str(task)) for task in range(1, tasks + 1, math.ceil(tasks / 10))]
    return _chart("accuracy after each task", "task", levels, ticks, _curves(curves, looks, right, titles), right)


def cost(rows: Sequence[Row], looks: Mapping[str, Style]) -> str:
    """Draw accuracy over FLOPs, and a line through the rows that no other row beats in both."""
    far = far_below(rows)
    shown = sorted((row for row in rows if row.label not in far), key=lambda row: looks[row.label].named)
    ends = {row.label: (min(100.0, row.accuracy + row.std), max(0.0, row.accuracy - row.std)) for row in shown}
    y, levels = _percent_axis([end for pair in ends.values() for end in pair])
    costs = {row.label: math.log10(max(row.tflops * 1e12, 1)) for row in rows}
    margin = 0.03 + 0.06 * (max(costs.values()) - min(costs.values()))
    low, high = min(costs.values()) - margin, max(costs.values()) + margin
    x = scale(low, high, LEFT, WIDTH - 12)
    places = {row.label: (x(costs[row.label]), y(row.accuracy)) for row in rows}
    labels = place_labels({label: places[label] for label in ends if looks[label].named}, places.values())
    drawn = [_line([places[row.label] for row in pareto_front(rows)], "front")]
    for row in shown:
        place, look, (upper, lower) = places[row.label], looks[row.label], ends[row.label]
        title = f"{row.label}: {row.accuracy:.1f} %, {quantity(row.tflops * 1e12, 'FLOPs')}"
        text = _named(row.label, labels[row.label], place) if row.label in labels else ""
        bar = _rule(place[0], y(upper), place[0], y(lower))
        drawn.append(_series(row.label, look, bar + _mark(place, look.marker, title) + text))
    steps = (1, 2, 5) if high - low > 1 else (1, 1.5, 2, 3, 5, 7)
    marks = [10.0**power * step for power in range(math.floor(low), math.ceil(high) + 1) for step in steps]
    ticks = [(x(math.log10(mark)), si_prefix(mark)) for mark in marks if low <= math.log10(mark) <= high]
    ticks = ticks[:: len(ticks) // 8 + 1] or [(x((low + high) / 2), si_prefix(10 ** ((low + high) / 2)))]
    return _chart("accuracy and FLOPs", "FLOPs of the whole run", levels, ticks, drawn, 12)


def profile(sensitivity: Mapping[str, float], thresholds: Thresholds) -> str:
    """Draw S_g of each group as a bar in the colour of the repair that chooses it; bars above 5 are cut."""
    if not sensitivity:
        return ""
    left, top = _room(sensitivity), 8 + LINE * len(thresholds)
    bottom = top + 26 * len(sensitivity)
    longest = min(max([*sensitivity.values(), *thresholds]), 5.0)
    x = scale(0, longest, left, WIDTH - 110)
    lines = []
    for y, (threshold, repairs) in zip(range(12, top, LINE), thresholds.items(), strict=True):
        lines.append(_rule(x(threshold), y - 10, x(threshold), bottom, "grid"))
        lines.append(_text(x(threshold) + 3, y, f"{', '.join(repairs)}: {threshold:g}"))
    for y, (group, score) in zip(range(top, bottom, 26), sensitivity.items(), strict=True):
        end, colour = x(min(score, longest)), group_family(score, thresholds)
        lines.append(_text(left - 6, y + 13, _cut(group), "end"))
        lines.append(f'<rect class="{colour} shade0" x="{left}" y="{y}" width="{end - left:.1f}" height="18"/>')
        lines.append(_text(end + 5, y + 13, f"{score:.2f}{' (bar cut)' if score > longest else ''}"))
    return _svg(bottom, "forgetting profile", lines)


def dynamics(record: Record, thresholds: Thresholds) -> str:
    """Draw the change of each group over every epoch, or return "" if there are fewer than three epochs."""
    changes = group_changes(record)
    positive = [value for values in changes.series.values() for value in values if value > 0]
    epochs = len(record.epoch_changes)
    if epochs < 3 or not positive:
        return ""
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    powers = range(low, max(high, low + 1) + 1)
    right = _room(changes.series)
    x = scale(0, epochs - 1, LEFT + 8, WIDTH - right - 8)
    y = scale(low, powers[-1], HEIGHT - BOTTOM, TOP)
    drawn = [_rule(x(start), TOP, x(start), HEIGHT - BOTTOM, "task") for start in list(changes.starts)[1:]]
    shifts = [_mark((x(index), TOP), "M0,8l-5,-8h10z", "detected") for index in changes.detected]
    drawn.append(f'<g class="shift">{"".join(shifts)}</g>')
    curves = {
        group: [(x(index), y(math.log10(max(value, 10.0**low)))) for index, value in enumerate(values)]
        for group, values in changes.series.items()
    }
    looks = styles({group: group_family(record.sensitivity.get(group), thresholds) for group in curves})
    drawn += _curves(curves, looks, right, dict.fromkeys(curves, ()))
    starts = list(changes.starts.items())[:: math.ceil(len(changes.starts) / 10)]
    levels, ticks = [(y(power), f"1e{power}") for power in powers], [(x(index), str(task)) for index, task in starts]
    return _chart("change of each group over time", "task", levels, ticks, drawn, right)


def matrix(row: Row) -> str:
    """Draw the accuracy on each task after each task, with the numbers of the tasks: the darker, the higher."""
    values = row.matrix
    size, margin = max(len(values[0]), len(values)), 18
    cell = (200 - margin) / size
    bottom, drawn, ticks = cell * len(values), [], []
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            place = f'x="{margin + j * cell:.1f}" y="{i * cell:.1f}" width="{cell:.1f}" height="{cell:.1f}"'
            title = f"<title>after task {i + 1}, on task {j + 1}: {value:.1f} %</title>"
            drawn.append(f'<rect {place} fill-opacity="{0.6 * value / 100:.2f}">{title}</rect>')
            if size <= 6:
                drawn.append(_text(margin + (j + 0.5) * cell, (i + 0.5) * cell + 4, f"{value:.0f}", "middle"))
    for task in range(0, size, math.ceil(size / 10)):
        ticks.append(_text(margin + (task + 0.5) * cell, bottom + 14, str(task + 1), "middle"))
        ticks.append(_text(margin - 6, (task + 0.5) * cell + 4, str(task + 1), "end"))
    cells = f'<g class="{family(row.label)} shade0">{"".join(drawn)}</g><g class="ticks">{"".join(ticks)}</g>'
    return _svg(round(bottom) + margin, "accuracy matrix", [cells], 200)


def place_ends(heights: Mapping[str, float]) -> dict[str, float]:
    """Return heights a line apart: labels are pushed down by those above, and up from the lower edge."""
    order, placed, limit = sorted(heights, key=heights.__getitem__), dict(heights), HEIGHT - BOTTOM
    for above, label in pairwise(order):
        placed[label] = max(placed[label], placed[above] + LINE)
    for number, label in enumerate(reversed(order)):
        placed[label] = min(placed[label], limit - number * LINE)
    return placed


def place_labels(points: Mapping[str, Point], marks: Iterable[Point]) -> dict[str, Point]:
    """Return where each label starts: next to its point, at the nearest height that covers no mark and no label."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in marks]
    placed = {}
    for label, (x, y) in points.items():
        width = LETTER * len(_cut(label))
        left = x + 9 if x + 9 + width < WIDTH else x - 9 - width
        heights = [y + step for step in sorted(range(-240, 241, 8), key=abs) if TOP < y + step < HEIGHT - BOTTOM]
        beside = [(top, bottom) for start, top, end, bottom in taken if start < left + width and left < end]
        free = (h for h in heights if all(h + LINE / 2 <= top or bottom <= h - LINE / 2 for top, bottom in beside))
        placed[label] = (left, next(free, y))
        taken.append((left, placed[label][1] - LINE / 2, left + width, placed[label][1] + LINE / 2))
    return placed


def _percent_axis(values: Sequence[float]) -> tuple[Callable[[float], float], Ticks]:
    """Return a map from percent to pixels that fits the values, and its ticks."""
    levels = round_numbers(min(values), max(values))
    y = scale(levels[0], levels[-1], HEIGHT - BOTTOM, TOP)
    return y, [(y(level), f"{level:g} %") for level in levels]


def _curves(
    curves: Mapping[str, Sequence[Point]], looks: Mapping[str, Style], right: float, titles: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return a line per curve. Those with titles come last, with a mark per title and the label at the right end."""
    heights, drawn = place_ends({label: curves[label][-1][1] for label in titles}), []
    for label, points in sorted(curves.items(), key=lambda item: item[0] in titles):
        inside = _line(points)
        if label in titles:
            inside += "".join(map(_mark, points, [looks[label].marker] * len(points), titles[label]))
            inside += _named(label, (WIDTH - right + 10, heights[label]), points[-1])
        drawn.append(_series(label, looks[label], inside))
    return drawn


def _series(label: str, look: Style, inside: str) -> str:
    return f'<g class="series {look.colour}" data-row="{escape(label)}">{inside}</g>'


def _line(points: Sequence[Point], kind: str = "line") -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str = "bar") -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _mark(place: Point, marker: str, title: str) -> str:
    position = f"translate({place[0]:.1f},{place[1]:.1f})"
    return f'<path transform="{position}" d="{marker}"><title>{escape(title)}</title></path>'


def _named(label: str, place: Point, mark: Point) -> str:
    """Return a label, cut to the room for it, and a thin line to its mark if it is not next to it."""
    end = max(place[0] - 3, min(mark[0], place[0] + 6 * len(_cut(label))))
    leader = _rule(*mark, end, place[1], "leader") if abs(place[1] - mark[1]) > 6 else ""
    return f"{leader}<g><title>{escape(label)}</title>{_text(place[0], place[1] + 4, _cut(label))}</g>"


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
    lines = [_rule(LEFT, y, WIDTH - right, y, "grid") + _text(LEFT - 6, y + 4, text, "end") for y, text in left]
    lines += [_text(x, HEIGHT - BOTTOM + 18, text, "middle") for x, text in below]
    lines.append(_text((LEFT + WIDTH - right) / 2, HEIGHT - 8, axis, "middle"))
    return _svg(HEIGHT, name, lines + inside)


def _svg(height: float, name: str, inside: list[str], width: int = WIDTH) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(name)}">{"".join(inside)}</svg>'
