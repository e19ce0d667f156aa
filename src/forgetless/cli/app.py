"""The command line: its commands, and how errors are reported.

Only commands that train import torch, so that help and lists appear at once.
"""

from __future__ import annotations

import signal
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

import forgetless
from forgetless.cli.data import data
from forgetless.cli.demo import demo
from forgetless.cli.options import PASS_THROUGH
from forgetless.cli.output import print_line, print_remark, print_table
from forgetless.cli.report import report
from forgetless.cli.reproduce import reproduce
from forgetless.cli.run import resume, run
from forgetless.cli.search import search
from forgetless.cli.sweep import sweep
from forgetless.config import catalogue
from forgetless.config.tracebacks import blamed_frames, user_frames
from forgetless.data.readers.files import DataError

INTERRUPTED = 130
ClickException: Any = typer.BadParameter.__mro__[2]  # typer exports no name for the base class of its errors

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Find which parts of a network forget when its data shifts, and repair only those."""
    if version:
        print_line(f"forgetless {forgetless.__version__}")
        raise typer.Exit


@app.command("list")
def list_names() -> None:
    """List the streams, methods and networks."""
    for kind, entries in catalogue.TABLES.items():
        print_table((f"{kind}s", ""), ((name, entry.summary) for name, entry in entries.items()))
    print_line("A path to your own object, package.module:object, is valid wherever a name is.")


app.command(context_settings=PASS_THROUGH)(run)
app.command()(resume)
app.command()(demo)
app.command()(sweep)
app.command(context_settings=PASS_THROUGH)(search)
app.command()(reproduce)
app.command()(report)
app.add_typer(data, name="data")


def main() -> None:
    """Run the command line. A mistake of the user ends with one line that says what would be right."""
    catalogue.find_modules_here()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # schedulers send SIGTERM; treat it as Ctrl-C
    warnings.showwarning = lambda message, *_: print_remark(f"warning: {message}")
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (ValueError, DataError, ImportError, FloatingPointError, OSError) as error:
        print_remark(f"error: {error}")
        _print_frames(user_frames(error.__cause__) if error.__cause__ else [])
        sys.exit(2)
    except ClickException as error:
        shows_help = type(error).__name__ == "NoArgsIsHelpError"
        print_remark(error.format_message() if shows_help else f"error: {_usage_message(error)}")
        sys.exit(2)
    except Exception as error:  # user code may raise anything; an error of the library keeps its traceback
        if not (frames := blamed_frames(error)):
            raise
        print_remark(f"error: {type(error).__name__}: {error}")
        _print_frames(frames)
        sys.exit(1)
    if code == INTERRUPTED:
        print_remark("interrupted; the same command resumes from the records and checkpoints")
    sys.exit(code)


def _print_frames(frames: list[traceback.FrameSummary]) -> None:
    """Print where in the user's own files an error was raised."""
    for frame in frames:
        print_remark(f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}")


def _usage_message(error: Any) -> str:
    """Return the message of a usage error, with the value; newer versions of typer leave it out."""
    message: str = error.format_message()
    errors = getattr(error.__cause__, "errors", None)
    return message if errors is None else f"{message}; it is {errors()[0]['input']!r}"
