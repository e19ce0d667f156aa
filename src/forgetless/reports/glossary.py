"""The terms of a report page: what they mean, where they occur and where to read more. Imports no torch.

The entries are in ``glossary.json``. The first name of an entry is the one shown. A hyphen is part of a word.
"""

import json
import re
from html import escape
from importlib.resources import files
from typing import Any

ENTRIES: list[dict[str, Any]] = json.loads(
    files("forgetless.reports").joinpath("glossary.json").read_text(encoding="utf-8")
)
BY_NAME = {name: entry for entry in reversed(ENTRIES) for name in entry["names"]}  # a shared name is the first entry's
PATTERN = re.compile(rf"(?<![\w-])(?:{'|'.join(sorted(map(re.escape, BY_NAME), key=len, reverse=True))})(?![\w-])")


def term(name: str) -> str:
    """Return how the literature writes the name of a method (DER++ for derpp), or the name if it is unknown."""
    return str(BY_NAME[name]["names"][0]) if name in BY_NAME else name


def meaning(name: str) -> str:
    """Return the explanation of a name, or an empty text if it is unknown."""
    return str(BY_NAME[name]["text"]) if name in BY_NAME else ""


def with_links(text: str) -> str:
    """Return text as HTML in which every known name is a link to its entry."""

    def link(name: re.Match[str]) -> str:
        return f'<a class="term" href="#{_anchor(term(name[0]))}" title="{escape(meaning(name[0]))}">{name[0]}</a>'

    return PATTERN.sub(link, escape(text))


def glossary(page: str) -> str:
    """Return the entries whose names occur in the text of a page, as items of a definition list."""
    occurring = set(PATTERN.findall(re.sub("<[^>]*>", " ", page)))
    items = []
    for entry in ENTRIES:
        if occurring & set(entry["names"]):
            name = entry["names"][0]
            source = f' <a href="{entry["link"]}">{escape(entry["source"])}</a>' if "link" in entry else ""
            items.append(f'<dt id="{_anchor(name)}">{escape(name)}</dt><dd>{escape(entry["text"])}{source}</dd>')
    return "".join(items)


def _anchor(name: str) -> str:
    return "term-" + re.sub(r"\W", lambda sign: f"-{ord(sign[0]):x}", name)
