"""``forgetless data``: list, download and check the data sets."""

from pathlib import Path
from typing import Annotated

import typer

from forgetless.cli.completion import complete_from
from forgetless.cli.options import Quiet
from forgetless.cli.output import print_line, print_note, print_table
from forgetless.config import catalogue
from forgetless.config.units import quantity
from forgetless.data.download import SOURCES, get, problems
from forgetless.data.readers.files import data_folder

data = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="List, download and check the data sets.")
complete_data = complete_from({name: source.summary for name, source in SOURCES.items()})


@data.command("list")
def list_data() -> None:
    """List the data sets and whether they are on this machine."""
    lines = []
    for name, source in SOURCES.items():
        present = [path.exists() for path in _paths(name)]
        state = "yes" if all(present) else "in part" if any(present) else "no"
        lines.append((name, source.summary, quantity(source.megabytes * 1e6, "B"), state))
    print_table(("name", "what", "size", "here"), lines)
    print_line(f"folder: {data_folder()} (FORGETLESS_DATA sets another)")


@data.command("get")
def get_data(
    names: Annotated[
        list[str], typer.Argument(help="Names from `forgetless data list`.", autocompletion=complete_data)
    ],
    quiet: Quiet = False,
) -> None:
    """Download data sets that are missing or damaged."""
    for name in names:
        if _defects(name):
            get(name, data_folder(), progress=not quiet)
        if defects := _defects(name):
            raise ValueError(f"{name}: {defects}")
        print_note(f"{name}: complete, in {data_folder()}")


@data.command("check")
def check_data(
    names: Annotated[
        list[str] | None, typer.Argument(help="Default: every data set on this machine.", autocompletion=complete_data)
    ] = None,
) -> None:
    """Compare the files of data sets with their published checksums."""
    complete = True
    for name in names or [name for name in SOURCES if any(path.exists() for path in _paths(name))]:
        defects = _defects(name)
        complete = complete and not defects
        print_line(f"{name}: {defects or 'complete'}")
    if not complete:
        raise typer.Exit(1)


def _paths(name: str) -> list[Path]:
    """Return the files and folders of a data set."""
    return [data_folder() / path for path in (*SOURCES[name].contents, *SOURCES[name].folders)]


def _defects(name: str) -> str:
    """Return what is missing or corrupt in a data set; empty if it is complete."""
    if name not in SOURCES:
        raise ValueError(catalogue.unknown("data set", name, SOURCES))
    return "; ".join(problems(name, data_folder()))
