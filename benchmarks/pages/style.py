"""The style of the pictures: the site's fonts, a thin grid, and one meaning per colour, on light and dark pages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D, Bbox

from pages.rows import DOCS

GREY, BLUE, ORANGE = "#8a93a2", "#3b82f6", "#ea580c"  # a method alone, FPF, k-FPF
TEAL = "#0d9488"  # everything that is not a method
INK = "#010203"  # stands for the colour of text and axes, which follows the page
FONTS = "-apple-system, BlinkMacSystemFont, Helvetica, Arial, sans-serif"  # the fonts of the site
CSS = (
    f"<style>svg{{color:#374151;font-family:{FONTS}}}@media (prefers-color-scheme:dark){{svg{{color:#d1d5db}}}}</style>"
)
WIDTH, HEIGHT = 6.4, 3.8  # inches

OFFSETS = [
    (6, 0), (-6, 0), (0, 9), (0, -9), (5, 7), (5, -7), (-5, 7), (-5, -7),
    *((dx, dy) for dy in (12, -12, 18, -18) for dx in (5, -5)), *((0, dy) for dy in (17, -17)),
]  # of a label from its point, the preferred ones first  # fmt: skip
Point = tuple[float, float]
Boxes = dict[str, list[Any]]  # of each label at each offset
Costs = dict[str, list[float]]

matplotlib.use("svg")
matplotlib.rcParams |= {
    "axes.axisbelow": True, "axes.edgecolor": INK, "axes.grid": True, "axes.labelcolor": INK, "axes.linewidth": 0.6,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left", "axes.titlesize": 10,
    "figure.constrained_layout.use": True, "font.size": 9, "grid.alpha": 0.18, "grid.color": INK, "grid.linewidth": 0.5,
    "legend.fontsize": 9, "legend.frameon": False, "lines.linewidth": 1.4, "lines.markersize": 4,
    "savefig.transparent": True, "svg.fonttype": "none", "svg.hashsalt": "forgetless", "text.color": INK,
    "xtick.color": INK, "xtick.major.width": 0.6, "xtick.minor.width": 0.4,
    "ytick.color": INK, "ytick.major.width": 0.6, "ytick.minor.width": 0.4,
}  # fmt: skip


def canvas(height: float = HEIGHT, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """Return a figure of the site's width and its axes."""
    figure = Figure(figsize=(WIDTH, height))
    return figure, figure.subplots(1, columns, **options)


def save(figure: Figure, name: str) -> None:
    """Write a figure to docs/name.svg, with text as text, in colours that follow the colour scheme of the page.

    A browser resolves ``prefers-color-scheme`` inside an image by the colour scheme of the element that shows it, so
    one file serves the setting of the system and the switch of the site.
    """
    out = StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    text = re.sub(r"font-family: [^;\"]*;? ?", "", out.getvalue())
    text = text.replace(INK, "currentColor").replace("<defs>", f"{CSS}\n <defs>", 1)
    (DOCS / f"{name}.svg").write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def label_points(axes: Any, points: Mapping[str, Point], lines: Sequence[tuple[Point, Point]] = ()) -> None:
    """Label each point where its label covers the fewest other labels, points and lines."""
    axes.figure.draw_without_rendering()
    to_points = axes.transData + Affine2D().scale(72 / axes.figure.dpi)
    frame = axes.get_window_extent().transformed(Affine2D().scale(72 / axes.figure.dpi))
    marks = {name: to_points.transform(point) for name, point in points.items()}
    texts = {
        name: axes.annotate(name, point, (0, 0), textcoords="offset points", va="center", fontsize=8.5)
        for name, point in points.items()
    }
    covered_lines = [to_points.transform(on) for ends in lines for on in points_between(*ends)]
    boxes: Boxes = {}
    for name, text in texts.items():
        text.set_in_layout(False)
        text.set_annotation_clip(False)
        size = text.get_window_extent().transformed(Affine2D().scale(72 / axes.figure.dpi))
        boxes[name] = [place(marks[name], dx, dy, size.width, size.height) for dx, dy in OFFSETS]
    fixed = {
        name: [
            0.1 * order
            + 3 * sum(box.padded(2).contains(*mark) for mark in marks.values())
            + 0.4 * sum(box.contains(*on) for on in covered_lines)
            + 3 * (box.x0 < frame.x0 or box.y0 < frame.y0 + 2)
            for order, box in enumerate(candidates)
        ]
        for name, candidates in boxes.items()
    }
    names = list(points)
    orders = [names[start:] + names[:start] for start in range(len(names))]
    chosen = min((arrange(order, boxes, fixed) for order in orders), key=lambda each: total_cost(each, boxes, fixed))
    for name, text in texts.items():
        dx, dy = OFFSETS[chosen[name]]
        text.set_position((dx, dy))
        text.set_horizontalalignment("left" if dx > 0 else "right" if dx < 0 else "center")


def arrange(order: Sequence[str], boxes: Boxes, fixed: Costs) -> dict[str, int]:
    """Return a place for each label: in turn, every label takes the best one given the places of the others."""
    chosen = dict.fromkeys(order, 0)
    for _ in range(10):
        for name in order:
            places = range(len(boxes[name]))
            chosen[name] = min(places, key=lambda index: cost(name, index, chosen, boxes, fixed))
    return chosen


def cost(name: str, index: int, chosen: Mapping[str, int], boxes: Boxes, fixed: Costs) -> float:
    """Return the cost of a place for a label: what it covers there."""
    others = (boxes[other][at].padded(3, 0) for other, at in chosen.items() if other != name)
    overlaps: int = sum(boxes[name][index].overlaps(other) for other in others)
    return fixed[name][index] + 4 * overlaps


def total_cost(chosen: Mapping[str, int], boxes: Boxes, fixed: Costs) -> float:
    """Return the cost of all labels."""
    return sum(cost(name, index, chosen, boxes, fixed) for name, index in chosen.items())


def points_between(first: Point, last: Point) -> list[Point]:
    """Return points along a line."""
    return [(first[0] + (last[0] - first[0]) * i / 20, first[1] + (last[1] - first[1]) * i / 20) for i in range(1, 20)]


def place(mark: Point, dx: float, dy: float, width: float, height: float) -> Any:
    """Return the box of a label that starts, ends or is centred at an offset from a mark."""
    left = mark[0] + dx - (0 if dx > 0 else width if dx < 0 else width / 2)
    return Bbox.from_bounds(left, mark[1] + dy - height / 2, width, height)


def label_ends(axes: Any, ends: Mapping[str, tuple[float, float]], distance: float = 11) -> None:
    """Write the name of each line at its right end, and move names apart that would overlap."""
    axes.figure.draw_without_rendering()
    scale = axes.figure.dpi / 72
    ordered = sorted(ends, key=lambda name: ends[name][1])
    heights = [axes.transData.transform(ends[name])[1] / scale for name in ordered]
    for name, height, moved in zip(ordered, heights, spread_out(heights, distance), strict=True):
        label = axes.annotate(
            name, ends[name], (6, moved - height), textcoords="offset points", va="center", fontsize=8.5,
            annotation_clip=False,
        )  # fmt: skip
        label.set_in_layout(False)


def spread_out(places: Sequence[float], distance: float) -> list[float]:
    """Return ascending places moved as little as needed to lie at least a distance apart."""
    blocks: list[list[float]] = []  # places that touch, each list centred on the mean of its members
    for place in places:
        blocks.append([place])
        while len(blocks) > 1 and start(blocks[-1], distance) < start(blocks[-2], distance) + distance * len(
            blocks[-2]
        ):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    return [start(block, distance) + distance * index for block in blocks for index in range(len(block))]


def start(block: Sequence[float], distance: float) -> float:
    """Return the lowest place of a block of places that touch."""
    return sum(block) / len(block) - distance * (len(block) - 1) / 2
