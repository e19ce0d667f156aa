"""Command-line options, generated from the settings they set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from forgetless.config.fields import Setting
from forgetless.experiments.settings import run_settings

POSITIONAL = ("stream", "method")


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**given`` an option for every setting of a run."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
    options = [_option(name, one) for name, one in run_settings().items() if name not in POSITIONAL]
    command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
    return command


def parse_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given on the command line, in their types."""
    known = run_settings()
    return {
        name: known[name].parse(value) if isinstance(value, str) else value
        for name, value in given.items()
        if value is not None
    }


def _option(name: str, declared: Setting) -> inspect.Parameter:
    """Return the parameter for one setting; ``None`` means that it is not given."""
    flag = f"--{name.replace('_', '-')}"
    kind = declared.kinds[0] if declared.kinds[0] in (bool, int, float) and len(declared.kinds) == 1 else str
    option = typer.Option(flag, help=declared.help, show_default=False)
    annotation: Any = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
