"""Place the labels of points and lines so that they do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

FONT_SIZE = 8.5
OFFSETS = [
    (6, 0), (-6, 0), (0, 9), (0, -9), (5, 7), (5, -7), (-5, 7), (-5, -7),
    *((dx, dy) for dy in (12, -12, 18, -18) for dx in (5, -5)), *((0, dy) for dy in (17, -17)),
]  # of a label from its point, the preferred ones first  # fmt: skip
Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle, in points of a 72nd of an inch."""

    left: float
    bottom: float
    right: float
    top: float

    def contains(self, point: Point, margin: float = 0) -> bool:
        """Return whether a point lies inside or within a margin of the box."""
        x, y = point
        within = self.left - margin < x < self.right + margin
        return within and self.bottom - margin < y < self.top + margin

    def overlaps(self, other: Box, gap: float = 3) -> bool:
        """Return whether two boxes overlap or stand less than a gap apart in a line."""
        apart = self.right + gap < other.left or other.right + gap < self.left
        return not apart and self.bottom < other.top and other.bottom < self.top


Boxes = Mapping[str, Sequence[Box]]  # of each label at each offset
Costs = Mapping[str, Sequence[float]]


def label_points(axes: Any, points: Mapping[str, Point], lines: Sequence[tuple[Point, Point]] = ()) -> None:
    """Label each point where its label covers the fewest other labels, points and lines."""
    axes.figure.draw_without_rendering()
    unit = 72 / axes.figure.dpi
    frame = axes.get_window_extent()

    def transform(point: Point) -> Point:
        x, y = axes.transData.transform(point)
        return x * unit, y * unit

    marks = {name: transform(point) for name, point in points.items()}
    on_lines = [transform(point) for ends in lines for point in points_between(*ends)]
    texts = {
        name: axes.annotate(
            name, point, (0, 0), textcoords="offset points", va="center", fontsize=FONT_SIZE, annotation_clip=False
        )
        for name, point in points.items()
    }
    boxes, costs = {}, {}
    for name, text in texts.items():
        text.set_in_layout(False)
        size = text.get_window_extent()
        boxes[name] = [
            label_box(marks[name], offset, size.width * unit, 0.8 * size.height * unit) for offset in OFFSETS
        ]
        costs[name] = [
            0.1 * order
            + 3 * sum(box.contains(mark, 2) for mark in marks.values())
            + 2 * sum(box.contains(mark, 6) for mark in marks.values() if mark != marks[name])  # ambiguous
            + 0.4 * sum(box.contains(point) for point in on_lines)
            + 3 * (box.left < frame.x0 * unit or box.bottom < frame.y0 * unit + 2)
            for order, box in enumerate(boxes[name])
        ]
    names = list(points)
    orders = [names[start:] + names[:start] for start in range(len(names))]
    arrangements = [arrange(order, boxes, costs) for order in orders]
    best = min(arrangements, key=lambda chosen: sum(cost(name, chosen[name], chosen, boxes, costs) for name in chosen))
    for name, text in texts.items():
        dx, dy = OFFSETS[best[name]]
        text.set_position((dx, dy))
        text.set_horizontalalignment("left" if dx > 0 else "right" if dx < 0 else "center")


def arrange(order: Sequence[str], boxes: Boxes, costs: Costs) -> dict[str, int]:
    """Return a place for each label: in turn, every label takes the best one given the places of the others."""
    chosen = dict.fromkeys(order, 0)
    for _ in range(10):
        before = dict(chosen)
        for name in order:
            chosen[name] = min(range(len(OFFSETS)), key=lambda place: cost(name, place, chosen, boxes, costs))
        if chosen == before:
            break
    return chosen


def cost(name: str, place: int, chosen: Mapping[str, int], boxes: Boxes, costs: Costs) -> float:
    """Return the cost of a place for a label: what it covers there."""
    box = boxes[name][place]
    return costs[name][place] + 4 * sum(box.overlaps(boxes[other][at]) for other, at in chosen.items() if other != name)


def label_box(mark: Point, offset: Point, width: float, height: float) -> Box:
    """Return the box of a label that starts, ends or is centred at an offset from a mark."""
    dx, dy = offset
    left = mark[0] + dx - (0 if dx > 0 else width if dx < 0 else width / 2)
    bottom = mark[1] + dy - height / 2
    return Box(left, bottom, left + width, bottom + height)


def points_between(first: Point, last: Point) -> list[Point]:
    """Return points along a line."""
    return [(first[0] + (last[0] - first[0]) * i / 20, first[1] + (last[1] - first[1]) * i / 20) for i in range(1, 20)]


def label_ends(axes: Any, ends: Mapping[str, Point], distance: float = 11) -> None:
    """Write the name of each line at its right end, and move names apart that would overlap."""
    axes.figure.draw_without_rendering()
    unit = 72 / axes.figure.dpi
    ordered = sorted(ends, key=lambda name: ends[name][1])
    heights = [axes.transData.transform(ends[name])[1] * unit for name in ordered]
    for name, height, moved in zip(ordered, heights, spread_out(heights, distance), strict=True):
        label = axes.annotate(
            name, ends[name], (6, moved - height), textcoords="offset points", va="center", fontsize=FONT_SIZE,
            annotation_clip=False,
        )  # fmt: skip
        label.set_in_layout(False)


def spread_out(places: Sequence[float], distance: float) -> list[float]:
    """Return ascending places moved as little as needed to lie at least a distance apart."""
    blocks: list[list[float]] = []  # places that touch, each list centred on the mean of its members
    for each in places:
        blocks.append([each])
        while len(blocks) > 1 and lowest(blocks[-1], distance) - lowest(blocks[-2], distance) < distance * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [lowest(block, distance) + distance * index for block in blocks for index in range(len(block))]


def lowest(block: Sequence[float], distance: float) -> float:
    """Return the lowest place of a block of places that touch."""
    return sum(block) / len(block) - distance * (len(block) - 1) / 2
