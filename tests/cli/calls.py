"""Calls of the command line, and the records and plans that they need."""

import dataclasses
import sys

from forgetless.experiments import record
from forgetless.experiments.settings import resolve
from helpers import command

COMMAND = [sys.executable, "-c", "from forgetless.cli import main; main()"]
QUICK = ["--epochs", "1", "--batch", "50", "--replay", "50"]


def forgetless(*arguments, cwd, expect=0, **environment):
    done = command(*arguments, cwd=cwd, **environment)
    assert done.returncode == expect, done.stderr
    return done


def leave(made, out, seed, *, validation=False, **changes):
    """Write a record of SGD on the digits with the numbers of another record."""
    settings, _ = resolve("seq-digits", "sgd", {"seed": seed, "validation": validation})
    own = {"id": settings.id, "label": settings.label, "settings": settings.to_dict()}
    record.write(dataclasses.replace(made, **own, **changes), record.path(out, settings))
    return settings.id


def write_plans(folder):
    (folder / "plan.toml").write_text('stream = "seq-digits"\nmethod = "sgd"\nseeds = 2\n')
    (folder / "grid.toml").write_text("lr = [0.1]\n")
