"""Names that a shell completes: streams, methods, networks, tables of the paper, data sets, choices and runs."""

from collections.abc import Callable, Mapping
from pathlib import Path

import typer

from forgetless.config import catalogue
from forgetless.experiments import record

Completer = Callable[[str], list[tuple[str, str]]]


def complete_names(kind: str) -> Completer:
    """Return a completer for the streams, methods or networks."""
    return complete_from({name: entry.summary for name, entry in catalogue.TABLES[kind].items()})


def complete_from(summaries: Mapping[str, str]) -> Completer:
    """Return a completer for names, each with its summary."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [(name, summary) for name, summary in summaries.items() if name.startswith(incomplete)]

    return complete


def complete_runs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the runs in the folder of the records that can be resumed."""
    folders = run_folders(Path(context.params.get("out") or "runs")).items()
    names = [name for name, folder in folders if not (folder / record.NAME).exists()]
    return complete_from(dict.fromkeys(names, ""))(incomplete)


def run_folders(out: Path) -> dict[str, Path]:
    """Return the folders of the runs that have a record or a checkpoint, by the id of the run."""
    if not out.is_dir():
        return {}
    files = [file for folder in sorted(out.iterdir()) for file in (folder / record.NAME, folder / record.CHECKPOINT)]
    return {file.parent.name: file.parent for file in files if file.is_file()}
