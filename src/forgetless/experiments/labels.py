"""Labels that tell runs apart by the settings in which they differ. Imports no torch."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from forgetless.experiments.settings import Settings


def labels(runs: Sequence[Settings]) -> dict[str, str]:
    """Return by id a label of each run, with the settings in which runs of the same method and repair differ.

    The stream is named if there are several.
    """
    values = {run.id: flat(run.to_dict()) for run in runs}
    several_streams = {"stream"} & varying(values.values())
    same_label: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        same_label.setdefault(run.label, []).append(values[run.id])
    names = {label: varying(members) | several_streams for label, members in same_label.items()}
    return {run.id: describe(run.label, values[run.id], names[run.label]) for run in runs}


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings with the method's own settings among them."""
    return {**{name: value for name, value in settings.items() if name != "options"}, **settings["options"]}


def varying(configurations: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the settings that do not have the same value in all configurations, which are flat."""
    members = list(configurations)
    names = {name for values in members for name in values}
    return {name for name in names if len({repr(values.get(name)) for values in members}) > 1}


def describe(label: str, values: Mapping[str, Any], names: Collection[str]) -> str:
    """Return a label with the values of some settings: "er, buffer 200, freeze fc1". What is off is left out."""
    shown = [_show(name, value) for name, value in values.items() if name in names]
    return ", ".join([label, *filter(None, shown)])


def _show(name: str, value: Any) -> str:
    """Return a setting as text; empty if it is off."""
    if isinstance(value, list):
        value = ",".join(map(str, value))
    if value is None or value is False or value == "":
        return ""
    return name if value is True else f"{name} {value}"
