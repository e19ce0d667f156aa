"""Command-line options: those generated from settings, and those that several commands share."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from forgetless.cli.completion import complete_from, complete_names
from forgetless.cli.output import silence
from forgetless.config.catalogue import load
from forgetless.config.fields import Setting, settings_of
from forgetless.experiments import record
from forgetless.experiments.execution import Execution
from forgetless.experiments.settings import run_settings
from forgetless.repair.settings import Finetune

EXECUTION = settings_of(Execution)
PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True}  # a method's own settings
OWN_SETTINGS = "The method's own settings are options too; `forgetless list METHOD` shows them."
PANELS = ("Training", "Buffer", "Repair", "Execution", "Output")  # of the help, in their order

Stream = Annotated[
    str, typer.Argument(help=run_settings()["stream"].help, autocompletion=complete_names("stream"), show_default=False)
]
Method = Annotated[
    str, typer.Argument(help=run_settings()["method"].help, autocompletion=complete_names("method"), show_default=False)
]
MethodOrRecipe = Annotated[
    str | None,
    typer.Argument(
        help=f"{run_settings()['method'].help[:-1]}; default: the recommended recipe.",
        autocompletion=complete_names("method"), show_default=False,
    ),
]  # fmt: skip
Out = Annotated[
    Path,
    typer.Option(
        parser=record.folder, metavar="FOLDER", rich_help_panel="Output",
        help="Folder of the records, or an object store's URL.",
    ),
]  # fmt: skip
Formats = Annotated[
    str, typer.Option(rich_help_panel="Output", help="Formats of the figures: png, svg, pdf, separated by commas.")
]


def flag(name: str, panel: str, help: str) -> Any:
    """Return an option without a value."""
    return typer.Option(name, rich_help_panel=panel, help=help)


Fpf = Annotated[bool, flag("--fpf", "Repair", "Repair the sensitive groups once, at the end (FPF).")]
KFpf = Annotated[bool, flag("--k-fpf", "Repair", "Also repair them during training (k-FPF).")]
AsJson = Annotated[bool, flag("--json", "Output", "Print the record as one line of JSON, and nothing else.")]
Force = Annotated[bool, flag("--force", "Execution", "Run again although there is a record.")]


def _set_quiet(quiet: bool) -> bool:
    if quiet:
        silence()
    return quiet


Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=_set_quiet, rich_help_panel="Output", help="Print only the result, without progress.",
    ),
]  # fmt: skip


def settings_except(names: Collection[str]) -> dict[str, Setting]:
    """Return the settings of a run, except some and except the arguments stream and method."""
    return {name: declared for name, declared in run_settings().items() if name not in {"stream", "method", *names}}


def with_options(settings: Mapping[str, Setting]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that adds an option for each setting to a command that takes ``**given``."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        written = list(signature.parameters.values())[:-1]
        generated = [_option(name, declared) for name, declared in settings.items()]
        parameters = sorted([*written, *generated], key=_position)
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def parse_options(given: Mapping[str, Any], settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Return the options of these settings that were given on the command line, in their types."""
    return {
        name: settings[name].parse(value) if isinstance(value, str) else value
        for name, value in given.items()
        if name in settings and value is not None
    }


def parse_settings(
    given: Mapping[str, Any], settings: Mapping[str, Setting], rest: Sequence[str], method: str, fpf: bool, k_fpf: bool
) -> dict[str, Any]:
    """Return the settings of a run from its options, the method's own settings, and the repair."""
    if fpf and k_fpf:
        raise ValueError("--fpf and --k-fpf exclude each other: k-FPF also repairs at the end")
    repair = {"repair": "fpf" if fpf else "k-fpf"} if fpf or k_fpf else {}
    return parse_options(given, settings) | _parse_rest(rest, method) | repair


def parse_execution(given: Mapping[str, Any]) -> Execution:
    """Return how the runs are executed."""
    return Execution(**parse_options(given, EXECUTION))


def _parse_rest(words: Sequence[str], method: str) -> dict[str, Any]:
    """Return the method's own settings from the rest of a command line: ``--name value`` or ``--name=value``."""
    texts: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise ValueError(f"{word!r} is not expected here: options start with --")
        name, equals, value = word[2:].partition("=")
        text = value if equals else next(rest, "--")
        if text.startswith("--"):
            raise ValueError(f"--{name} is not an option of this command; as a setting of {method} it needs a value")
        texts[name.replace("-", "_")] = text
    if "repair" in texts:
        raise ValueError(f"repair is {texts['repair']!r}; on the command line it is --fpf, --k-fpf or neither")
    known = {**settings_of(load("method", method)), **run_settings()} if texts else {}
    return {name: known[name].parse(text) if name in known else text for name, text in texts.items()}


def _option(name: str, declared: Setting) -> inspect.Parameter:
    """Return the parameter for one setting; its default ``None`` means that it was not given."""
    kind = declared.kinds[0] if declared.kinds[0] in (bool, int, float) and len(declared.kinds) == 1 else str
    completer = complete_names("network") if name == "network" else complete_from(dict.fromkeys(declared.choices, ""))
    option = typer.Option(
        f"--{name.replace('_', '-')}", help=declared.help, show_default=False, rich_help_panel=_panel(name),
        autocompletion=completer if name == "network" or declared.choices else None,
    )  # fmt: skip
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _panel(name: str) -> str:
    """Return the panel of the help that shows a setting."""
    if name in {declared.option for declared in settings_of(Finetune).values() if declared.recorded != "never"}:
        return "Repair"
    if name in EXECUTION or name in ("device", "precision"):
        return "Execution"
    return {"buffer": "Buffer", "policy": "Buffer", "replay": "Buffer", "log": "Output"}.get(name, "Training")


def _position(parameter: inspect.Parameter) -> int:
    """Return where a parameter stands: arguments first, then the options in the order of their panels."""
    metadata = getattr(parameter.annotation, "__metadata__", ())
    panel = getattr(metadata[0], "rich_help_panel", None) if metadata else None
    return PANELS.index(panel) + 1 if panel in PANELS else 0
