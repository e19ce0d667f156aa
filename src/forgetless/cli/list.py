"""``forgetless list``."""

from __future__ import annotations

from rich.table import Table

from forgetless.cli.output import stdout
from forgetless.config import catalogue


def list_names() -> None:
    """List the streams, methods and networks."""
    for kind, entries in catalogue.TABLES.items():
        table = Table(title=f"{kind}s", title_justify="left", show_header=False, box=None, padding=(0, 2))
        for name, entry in entries.items():
            table.add_row(name, entry.summary)
        stdout.print(table)
    stdout.print("A path to your own object, package.module:object, is valid wherever a name is.")
