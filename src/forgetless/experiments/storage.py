"""Files that are whole or not there at all, and when checkpoints are written. Imports no torch."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTIAL = ".partial"


def write_whole(data: bytes, file: Path) -> None:
    """Into a temporary file beside it, onto the disk, then into place; what was there stays until then.

    In an object store, which is no ``Path``, a file appears whole or not at all by itself.
    """
    remote: Any = None if isinstance(file, Path) else file
    if remote is not None:
        remote.parent.mkdir(parents=True, exist_ok=True)
        remote.write_bytes(data)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, f"{file} could not be written: {error.strerror or error}") from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def check_path(folder: object) -> None:
    """An error if it is a text."""
    if isinstance(folder, str):
        raise ValueError(f"out is the text {folder!r}; it must be a path: Path({folder!r})")


def check_folder(folder: Any) -> None:
    """Make it if it is not there; an error if nothing can be written into it, in an object store too."""
    check_path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(folder, Path):
            with tempfile.TemporaryFile(dir=folder):
                pass
        else:
            probe = folder / f"{uuid.uuid4().hex}{PARTIAL}"
            probe.write_bytes(b"")
            probe.unlink()
    except OSError as error:
        raise OSError(
            error.errno, f"out is {folder}, where nothing can be written: {error.strerror or error}"
        ) from None


def sweep_up(folder: Path) -> None:
    """Remove what processes that were killed while writing have left; what is younger may still be written."""
    for left in folder.glob(f"*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 60:
                left.unlink()


@dataclass(frozen=True)
class Schedule:
    """When checkpoints are written: every so many steps (rounded up to tens), every so many seconds, or both."""

    steps: int | None = None
    seconds: float | None = 60.0

    def __post_init__(self) -> None:
        for name in ("steps", "seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"checkpoints every {value} {name}; it must be above 0, or None for never")


USUAL = Schedule()  # one a minute
