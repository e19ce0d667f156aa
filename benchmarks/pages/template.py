"""Render the Markdown templates of benchmarks/templates with values that are computed from the committed records.

A template holds the sentences; a Python file in pages/ computes the values. A sentence whose truth depends on
the records is either computed or wrapped in a claim, and a claim that does not hold stops the build:

    {% call claim(block3 < both) %}Leaving out block3 lowers the accuracy.{% endcall %}

A page opens with its conclusion. Long tables and the details of a measurement are folded:

    {% call fold("S_g of every group") %}{{ table }}{% endcall %}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from pages.names import STREAM_NAMES, joined, readable, row_name

NUMBERS = re.compile(r"(?:[\d\s.,e±→/+\-–%()×]|\bof\b|\bto\b)*")  # a cell that holds nothing but numbers
CODE = re.compile(r"(`[^`]*`)")
TEMPLATES = Path(__file__).parent.parent / "templates"


def claim(holds: bool, caller: Callable[[], str]) -> str:
    """Return the text of a claim, or raise an error that quotes it if the records contradict it."""
    text = caller()
    if not holds:
        raise ValueError(f"the records contradict this sentence: {text.strip()!r}; change the sentence in its template")
    return text


def fold(title: str, caller: Callable[[], str]) -> str:
    """Return a text that a click on its title opens, on the site and on GitHub."""
    return f'<details class="note" markdown="1">\n<summary>{title}</summary>\n\n{caller().strip()}\n\n</details>\n'


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without a final newline; columns of numbers are right-aligned."""
    rows = list(rows)
    marks = ["---:" if all(NUMBERS.fullmatch(cell) for cell in column) else "---" for column in zip(*rows, strict=True)]
    lines = [header, marks, *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in cells) for cells in lines)


def table_and_settings(header: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """Return a table of the first columns, which hold numbers, and a table of the settings in the other columns."""
    rows = list(rows)
    first = markdown_table(header[:numbers], [row[:numbers] for row in rows])
    second = markdown_table(["", *header[numbers:]], [[row[0], *row[numbers:]] for row in rows])
    return f"{first}\n\n{second}"


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return mean ± standard deviation."""
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def fixed(value: float, digits: int = 1) -> str:
    """Return a number with a fixed number of digits after the point."""
    return f"{value:.{digits}f}"


def signed(value: float, digits: int = 1) -> str:
    """Return a number with its sign."""
    return f"{value:+.{digits}f}"


def figures(value: float, count: int = 3) -> str:
    """Return a number with a number of significant figures."""
    return f"{value:.{count}g}"


def grouped(value: float) -> str:
    """Return a whole number with commas between the thousands."""
    return f"{value:,.0f}"


def render(name: str, values: Mapping[str, Any]) -> str:
    """Return a template filled with values; a name without a value is an error.

    Blocks may leave several blank lines, which become one. A number and its unit stay on one line. Code is unchanged.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    environment.globals |= {"claim": claim, "fold": fold}
    environment.filters |= {
        "fixed": fixed, "signed": signed, "figures": figures, "grouped": grouped, "spread": spread, "mean": mean,
        "row_name": row_name, "stream_name": STREAM_NAMES.__getitem__, "readable": readable, "joined": joined,
    }  # fmt: skip
    text = environment.get_template(name).render(values)
    text = "".join(part if part.startswith("`") else _typeset(part) for part in CODE.split(text))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def _typeset(text: str) -> str:
    """Return a text without negative zeros, and with a space that does not break between a number and its unit."""
    text = re.sub(r"(?<![\d.])-(0\.0+)(?!\d)", r"\1", text)
    text = re.sub(r"(?<=\d)%", " %", text)
    return re.sub(r"(?<=\d) (?=[%×±→])|(?<=[±→]) (?=\d)", "\u00a0", text)
