"""The style of the pictures: the site's fonts, a thin grid, and one meaning per colour, on light and dark pages."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from pages.rows import DOCS

GREY, BLUE, ORANGE = "#8a93a2", "#3b82f6", "#ea580c"  # a method alone, FPF, k-FPF
TEAL = "#0d9488"  # everything that is not a method
INK = "#010203"  # stands for the colour of text and axes, which follows the page
FONTS = "-apple-system, BlinkMacSystemFont, Helvetica, Arial, sans-serif"  # the fonts of the site
CSS = (
    f"<style>svg{{color:#374151;font-family:{FONTS}}}@media (prefers-color-scheme:dark){{svg{{color:#d1d5db}}}}</style>"
)
WIDTH, HEIGHT = 6.4, 3.8  # inches

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
