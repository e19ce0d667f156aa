"""The pages of numbers, docs/results.md and others, and the README's table, from the committed records: see ``pages``.

python benchmarks/tables.py            # writes the pages and the pictures
python benchmarks/tables.py --check    # fails if a page is not what the records give
"""

from __future__ import annotations

import argparse
import sys

from pages import findings, pictures, readme, reliability, results, speed, studies, transformers
from pages.found import COLUMNS, DOCS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    written = {
        "../README.md": readme.page(),
        "results.md": results.page(),
        "studies.md": studies.page(),
        "findings.md": findings.page(),
        "speed.md": speed.page(),
        "reliability.md": reliability.page(),
        "transformers.md": transformers.page(),
    }
    if parser.parse_args().check:
        for name, text in written.items():
            if (DOCS / name).read_text() != text:
                sys.exit(f"docs/{name} is not what the records give: run benchmarks/tables.py")
        return
    for name, text in written.items():
        (DOCS / name).write_text(text)
    pictures.speed(DOCS / "speed.svg")
    for stream, buffer in COLUMNS:
        pictures.cost(stream, buffer, DOCS / f"cost-{stream}-{buffer}.svg")
    pictures.moving()
    studies.pictures()
    pictures.method("seq-cifar10")


if __name__ == "__main__":
    main()
