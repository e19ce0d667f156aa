"""The command line: its commands, and how errors are reported.

Only commands that train import torch, so that help and lists appear at once.
"""

import signal
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

import forgetless
from forgetless.cli.data import data
from forgetless.cli.demo import demo
from forgetless.cli.list import list_names
from forgetless.cli.options import OWN_SETTINGS, PASS_THROUGH
from forgetless.cli.output import print_error, print_line
from forgetless.cli.repair import repair
from forgetless.cli.report import report
from forgetless.cli.reproduce import reproduce
from forgetless.cli.run import resume, run
from forgetless.cli.search import search
from forgetless.cli.sweep import sweep
from forgetless.config import catalogue
from forgetless.config.tracebacks import blamed_frames
from forgetless.data.readers.files import DataError

INTERRUPTED = 130
ClickException: Any = typer.BadParameter.__mro__[2]  # typer exports no name for the base class of its errors

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Find which parts of a network forget when its data shifts, and repair only those."""
    if version:
        print_line(f"forgetless {forgetless.__version__}")
        raise typer.Exit


app.command(rich_help_panel="Train", context_settings=PASS_THROUGH, epilog=OWN_SETTINGS)(run)
app.command(rich_help_panel="Train")(resume)
app.command(rich_help_panel="Train")(sweep)
app.command(rich_help_panel="Train", context_settings=PASS_THROUGH, epilog=OWN_SETTINGS)(search)
app.command(rich_help_panel="Train")(reproduce)
app.command(rich_help_panel="Train")(demo)
app.command(rich_help_panel="Repair")(repair)
app.command("list", rich_help_panel="Look up")(list_names)
app.command(rich_help_panel="Look up")(report)
app.add_typer(data, name="data", rich_help_panel="Look up")


def main() -> None:
    """Run the command line. A mistake of the user ends with one line that says what would be right."""
    catalogue.find_modules_here()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # schedulers send SIGTERM; treat it as Ctrl-C
    warnings.showwarning = lambda message, *_: print_error(f"warning: {message}")
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except (ValueError, DataError, ImportError, FloatingPointError, OSError) as error:
        print_error(f"error: {error}")
        _print_frames(blamed_frames(error))
        sys.exit(2)
    except ClickException as error:
        if type(error).__name__ != "NoArgsIsHelpError":  # which has printed the help
            print_error(f"error: {_usage_message(error)}")
        sys.exit(2)
    except Exception as error:  # user code may raise anything; an error of the library keeps its traceback
        if not (frames := blamed_frames(error)):
            raise
        print_error(f"error: {type(error).__name__}: {error}")
        _print_frames(frames)
        sys.exit(1)
    if code == INTERRUPTED:
        command = "the same command without --force" if "--force" in sys.argv else "the same command"
        print_error(f"interrupted; {command} resumes from the records and checkpoints")
    sys.exit(code)


def _print_frames(frames: list[traceback.FrameSummary]) -> None:
    """Print where in the user's own files an error was raised."""
    for frame in frames:
        print_error(f"  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}")


def _usage_message(error: Any) -> str:
    """Return the message of a usage error, with the value; newer versions of typer leave it out."""
    message: str = error.format_message()
    errors = getattr(error.__cause__, "errors", None)
    return message if errors is None else f"{message}; it is {errors()[0]['input']!r}"
