"""The terms of a report page: what they mean, where they occur and where to read more. Imports no torch.

The entries are in ``glossary.json``. The first name of an entry is the one shown. A hyphen is part of a word.
"""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any


@cache
def _entries() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(
        files("forgetless.reports").joinpath("glossary.json").read_text(encoding="utf-8")
    )
    return entries


@cache
def _by_name() -> dict[str, dict[str, Any]]:
    """Return the entry of each name; a name that two entries share belongs to the first."""
    return {name: entry for entry in reversed(_entries()) for name in entry["names"]}


@cache
def _pattern() -> re.Pattern[str]:
    names = sorted(map(re.escape, _by_name()), key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])")


def term(name: str) -> str:
    """Return how the literature writes the name of a method (DER++ for derpp), or the name if it is unknown."""
    return str(_by_name()[name]["names"][0]) if name in _by_name() else name


def meaning(name: str) -> str:
    """Return the explanation of a name, or an empty text if it is unknown."""
    return str(_by_name()[name]["text"]) if name in _by_name() else ""


def with_links(text: str) -> str:
    """Return text as HTML in which every known name is a link to its entry."""

    def link(name: re.Match[str]) -> str:
        return f'<a class="term" href="#{_anchor(term(name[0]))}" title="{escape(meaning(name[0]))}">{name[0]}</a>'

    return _pattern().sub(link, escape(text))


def glossary(page: str) -> str:
    """Return the entries whose names occur in the text of a page, as items of a definition list."""
    occurring = set(_pattern().findall(re.sub("<[^>]*>", " ", page)))
    items = []
    for entry in _entries():
        if occurring & set(entry["names"]):
            name = entry["names"][0]
            source = f' <a href="{entry["link"]}">{escape(entry["source"])}</a>' if "link" in entry else ""
            items.append(f'<dt id="{_anchor(name)}">{escape(name)}</dt><dd>{escape(entry["text"])}{source}</dd>')
    return "".join(items)


def _anchor(name: str) -> str:
    return "term-" + re.sub(r"\W", lambda sign: f"-{ord(sign[0]):x}", name)
