"""``forgetless list``: the streams, methods and networks, or one of them in detail."""

import inspect
import re
import sys
from typing import Annotated, Any

import typer

from forgetless.cli.completion import complete_from
from forgetless.cli.output import print_json, print_line, print_table
from forgetless.config import catalogue
from forgetless.config.fields import Setting, settings_of
from forgetless.config.units import quantity, si_prefix
from forgetless.data.download import SOURCES
from forgetless.data.requirements import DATA_SETS, missing
from forgetless.experiments.presets import preset_table
from forgetless.experiments.settings import run_settings

SUMMARIES = {name: entry.summary for table in catalogue.TABLES.values() for name, entry in table.items()}
EXAMPLES = {
    "stream": "forgetless run {name} er --fpf",
    "method": "forgetless run seq-digits {name} --fpf",
    "network": "forgetless run seq-digits er --network {name}",
}


def list_names(
    name: Annotated[
        str | None,
        typer.Argument(help="Show this stream, method or network in detail.", autocompletion=complete_from(SUMMARIES)),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON, and nothing else.")] = False,
) -> None:
    """List the streams, methods and networks, or show one of them with its settings."""
    if name is not None:
        details = _details(name)
        print_json(details) if as_json else _print_details(details)
    elif as_json:
        print_json([_summary(kind, name) for kind, table in catalogue.TABLES.items() for name in table])
    else:
        for kind, entries in catalogue.TABLES.items():
            print_table((f"{kind}s", ""), ((name, entry.summary) for name, entry in entries.items()))
        print_line("`forgetless list NAME` shows one of them with its settings.")
        print_line("Commands that train also accept your own object, package.module:object, wherever a name is valid.")


def _summary(kind: str, name: str) -> dict[str, Any]:
    """Return what the tables say about a name."""
    entry = catalogue.TABLES[kind][name]
    return {"kind": kind, "name": name, "summary": entry.summary, "path": entry.path}


def _details(name: str) -> dict[str, Any]:
    """Return everything about a name, as plain data. Imports what the name stands for, and with it torch."""
    kind = next((kind for kind, table in catalogue.TABLES.items() if name in table), None)
    if kind is None:
        raise ValueError(catalogue.unknown("stream, method or network", name, SUMMARIES))
    listed = catalogue.load(kind, name)
    module = inspect.getdoc(sys.modules[listed.__module__]) or ""
    described = (inspect.getdoc(listed) or "") if kind == "stream" else module
    paper = re.search(r"\(([A-ZÀ-Þ][^()]*? \d{4})[,)]", f"{SUMMARIES[name]} {module}")  # such as (Buzzega et al. 2020)
    details = {**_summary(kind, name), "paper": paper and paper[1], "description": described}
    if kind == "stream":
        details["data"] = _data(name)
        values = preset_table("stream_defaults")[name]
        details["settings"] = [_setting(run_settings()[key], value) for key, value in values.items()]
    else:
        details["settings"] = [_setting(declared, declared.default) for declared in settings_of(listed).values()]
    if kind == "network":
        count = sum(parameter.numel() for parameter in listed(10).parameters())
        details["size"] = f"{si_prefix(count)} parameters with 10 classes"
    return {**details, "example": EXAMPLES[kind].format(name=name)}


def _setting(declared: Setting, default: Any) -> dict[str, Any]:
    """Return a setting as plain data."""
    return {"name": declared.option, "default": default, "range": declared.wanted, "help": declared.help}


def _data(stream: str) -> str:
    """Return which data set a stream reads, its size, and whether it is on this machine."""
    if stream not in DATA_SETS:
        return "needs no download"
    name = DATA_SETS[stream]
    return f"{name}, {quantity(SOURCES[name].megabytes * 1e6, 'B')}; {missing(stream) or 'on this machine'}"


def _print_details(details: dict[str, Any]) -> None:
    """Print what ``_details`` returns."""
    print_line(f"{details['name']}: {details['summary']}\n")
    print_line(f"{details['description']}\n")
    for name in ("kind", "path", "paper", "size", "data"):
        if details.get(name):
            print_line(f"{name}: {details[name]}")
    print_line("")
    if details["settings"]:
        head = "a run starts from" if details["kind"] == "stream" else "setting"
        lines = (
            (f"--{each['name'].replace('_', '-')}", str(each["default"]), each["range"], each["help"])
            for each in details["settings"]
        )
        print_table((head, "default", "range", ""), lines)
    else:
        print_line(f"This {details['kind']} has no settings of its own.")
    print_line(f"\nexample: {details['example']}")
