"""``forgetless data``: list, download and check the data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from forgetless.cli.output import stdout
from forgetless.config import catalogue
from forgetless.data.download import SOURCES, get, problems
from forgetless.data.readers.files import data_folder

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, download and check the data sets.")


@data.command("list")
def list_data() -> None:
    """List the data sets and whether they are on this machine."""
    table = Table("name", "what", "MB", "here", box=None, padding=(0, 2))
    for name, source in SOURCES.items():
        present = [path.exists() for path in _paths(name)]
        state = "yes" if all(present) else "in part" if any(present) else "no"
        table.add_row(name, source.summary, str(source.megabytes), state)
    stdout.print(table)
    stdout.print(f"folder: {data_folder()} (FORGETLESS_DATA sets another)")


@data.command("get")
def get_data(names: Annotated[list[str], typer.Argument(help="Names from `forgetless data list`.")]) -> None:
    """Download data sets that are missing or damaged."""
    for name in names:
        _check_name(name)
        if problems(name, data_folder()):
            get(name, data_folder())
        if left := problems(name, data_folder()):
            raise ValueError(f"{name}: {'; '.join(left)}")
        stdout.print(f"{name}: complete, in {data_folder()}")


@data.command("check")
def check_data(
    names: Annotated[list[str] | None, typer.Argument(help="Default: every data set on this machine.")] = None,
) -> None:
    """Compare the files of data sets with their published checksums."""
    damaged = False
    for name in names or list(SOURCES):
        _check_name(name)
        if not names and not any(path.exists() for path in _paths(name)):
            continue
        found = problems(name, data_folder())
        damaged = damaged or bool(found)
        stdout.print(f"{name}: {'; '.join(found) or 'complete'}")
    if damaged:
        raise typer.Exit(1)


def _paths(name: str) -> list[Path]:
    """Return the files and folders of a data set."""
    return [data_folder() / path for path in (*SOURCES[name].contents, *SOURCES[name].folders)]


def _check_name(name: str) -> None:
    """Raise ``ValueError`` for an unknown data set."""
    if name not in SOURCES:
        raise ValueError(catalogue.unknown("data set", name, SOURCES))
