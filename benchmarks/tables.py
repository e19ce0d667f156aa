"""Write the pages of numbers and their pictures from the committed records.

    python benchmarks/tables.py            # write the pages and the pictures
    python benchmarks/tables.py --check    # fail if a page does not match the records

A page is a Markdown template in templates/ and a Python file in pages/ that computes its values.
"""

from __future__ import annotations

import argparse
import sys

from pages import (
    choice,
    defaults,
    findings,
    language,
    pictures,
    reliability,
    results,
    scale,
    speed,
    studies,
    transformers,
)
from pages.rows import DOCS
from pages.template import render

PAGES = {
    "results.md": results,
    "studies.md": studies,
    "findings.md": findings,
    "choice.md": choice,
    "defaults.md": defaults,
    "speed.md": speed,
    "scale.md": scale,
    "reliability.md": reliability,
    "transformers.md": transformers,
    "smollm2.md": language,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the pages with the records and write nothing")
    check = parser.parse_args().check
    pages = {name: render(name, page.values()) for name, page in PAGES.items()}
    if check:
        for name, text in pages.items():
            if (DOCS / name).read_text() != text:
                sys.exit(f"docs/{name} does not match the records; run python benchmarks/tables.py")
        return
    for name, text in pages.items():
        (DOCS / name).write_text(text)
    pictures.draw_all()


if __name__ == "__main__":
    main()
