"""``forgetless report``: tables, figures and a page of records."""

import os
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from forgetless.cli.options import Formats, Quiet
from forgetless.cli.output import agreeing, print_by_stream, print_note, print_skipped
from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.experiments.storage import write_whole
from forgetless.reports import charts, page, rows


def report(
    folders: Annotated[list[str], typer.Argument(help="Folders or URLs of records.")],
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("report.html"),
    table: Annotated[Path | None, typer.Option(help="Also write the table to this .csv or .tex file.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write the figures to this folder.")] = None,
    formats: Formats = "png,svg,pdf",
    title: Annotated[str | None, typer.Option(help="Title of the page; default: the streams.")] = None,
    quiet: Quiet = False,
) -> None:
    """Print a table of all records in some folders, and write one self-contained page with charts."""
    if table is not None and table.suffix not in (".csv", ".tex"):
        raise ValueError(f"table is {str(table)!r}; its name must end in .csv or .tex")
    if out.is_dir():
        raise ValueError(f"out is {str(out)!r}, a folder; it must be a file, such as {str(out / 'report.html')!r}")
    if figures is not None:
        charts.check_formats(formats.split(","))
    records = _read(folders)
    kept = rows.best_first(agreeing([finished for _, finished in records]))
    if not kept:
        raise ValueError(f"no record in {', '.join(folders)} can be read")
    print_by_stream(kept)
    links = {finished.id: _link(file, out) for file, finished in records}
    write_whole(page.html(kept, title or ", ".join(rows.by_stream(kept)), links).encode(), out)
    print_note(f"page: {out}")
    if table is not None:
        text = rows.latex_table(kept) if table.suffix == ".tex" else rows.csv_table(kept)
        write_whole(text.encode(), table)
        print_note(f"table: {table}")
    if figures is not None:
        for file in charts.draw_records(kept, figures, tuple(formats.split(","))):
            print_note(f"figure: {file}")


def _read(folders: list[str]) -> list[tuple[Path, Record]]:
    """Return the records with their files. Of records with the same settings only the first counts."""
    files = {name: record.files(record.folder(name)) for name in folders}
    if empty := [name for name, members in files.items() if not members]:
        raise ValueError(
            f"there is no record in {', '.join(empty)}; records are <folder>/<id>/record.json or .jsonl files"
        )
    records, problems = record.read_files([file for members in files.values() for file in members])
    print_skipped(problems)
    first: dict[str, tuple[Path, Record]] = {}
    for file, finished in records:
        first_file, first_record = first.setdefault(finished.id, (file, finished))
        if finished is not first_record and not record.same_numbers(finished, first_record):
            print_skipped([f"{file} has other numbers than {first_file}, the record of the same settings"])
    return list(first.values())


def _link(file: Path, page_file: Path) -> str:
    """Return the address of a record, relative to the page."""
    if "://" in str(file):
        return str(file)
    return quote(Path(os.path.relpath(file.resolve(), page_file.resolve().parent)).as_posix())
