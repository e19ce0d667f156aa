"""Finished runs: whether a record is still that of the user's code, and how a run is repeated. Imports no torch.

The record of a run holds a checksum of each file with code of the user's that the run names: its stream, method or
network, given as ``package.module:object``. Files that these import are not part of it.
"""

import inspect
import sys
import warnings
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from forgetless.config import catalogue
from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.experiments.settings import Settings
from forgetless.experiments.storage import write_whole

OLD = "record.old.json"


def find_current(out: Path, settings: Settings) -> Record | None:
    """Return the record of a run; ``None`` if there is none, or if the user's code changed since, with a warning.

    A record of other code is set aside, so that the run is done again. Raise ``ValueError`` if the file is corrupt.
    """
    if not record.path(out, settings).exists():
        return None
    found = record.read_run(out, settings)
    if not (changed := changed_code(found.code, settings)):
        return found
    warnings.warn(f"{' and '.join(changed)} changed since the record was made: the run is repeated", stacklevel=2)
    set_aside(out, settings)
    return None


def set_aside(out: Path, settings: Settings) -> None:
    """Rename the record of a run to ``record.old.json``, if there is one, so that the run is done again."""
    file = record.path(out, settings)
    if file.exists():
        write_whole(file.read_bytes(), file.with_name(OLD))
        file.unlink()


def changed_code(before: Mapping[str, str], settings: Settings) -> list[str]:
    """Return the names of the user's parts whose file has another checksum than before.

    Records and checkpoints of built-in names have no checksums, and neither have records of older versions.
    """
    now = user_code(settings) if before else {}
    return [name for name, checksum in before.items() if now.get(name, checksum) != checksum]


def user_code(settings: Settings) -> dict[str, str]:
    """Return the checksum of the file that defines each part of the run that is the user's, by the part's path."""
    checksums = {}
    for kind, name in settings.user_parts.items():
        with suppress(Exception):  # it cannot be imported, which may raise anything, or it is in no file (a notebook)
            part, (module, _) = catalogue.load(kind, name), catalogue.module_of(name)
            if inspect.isroutine(part) or inspect.isclass(part):  # it may be imported from another module
                module = part.__module__
            checksums[name] = _checksum(sys.modules[module])
    return checksums


@cache  # what the process has imported stays as it is when its file changes
def _checksum(module: ModuleType) -> str:
    """Return the checksum of a module's file; raise ``OSError`` if it has none."""
    return f"{zlib.crc32(Path(getattr(module, '__file__', None) or '').read_bytes()):08x}"
