"""Write files that are complete or absent, read TOML, and schedule checkpoints. Imports no torch."""

import os
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PARTIAL = ".partial"


def write_whole(data: bytes, file: Path) -> None:
    """Write a file so that it is complete or absent. The file before stays until the new one is on disk.

    An object store, whose files are not ``Path`` objects, guarantees this by itself.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    target: Any = file
    if not isinstance(target, Path):
        target.write_bytes(data)
        return
    temporary = file.with_name(f"{file.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        raise OSError(error.errno, f"{file} could not be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Create a folder if it is missing; raise ``OSError`` if nothing can be written into it."""
    probe = folder / f"{uuid.uuid4().hex}{PARTIAL}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(error.errno, f"out is {folder}, where nothing can be written: {reason}") from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return the values of a TOML file, or raise ``ValueError`` if it cannot be read."""
    try:
        values: dict[str, Any] = tomllib.loads(file.read_text())
        return values
    except FileNotFoundError:
        raise ValueError(f"there is no file {file}") from None
    except IsADirectoryError:
        raise ValueError(f"{file} is a folder; it must be a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None


def sweep_up(folder: Path) -> None:
    """Remove partial files that killed processes left. A file younger than a minute may still be written to."""
    for partial in folder.glob(f"*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime > 60:
                partial.unlink()


@dataclass(frozen=True)
class Schedule:
    """When a run writes checkpoints: at intervals of steps (rounded up to tens), of seconds, or both."""

    steps: int | None = None
    seconds: float | None = None
