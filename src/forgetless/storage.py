"""Files that are whole or not there at all. Imports no torch."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any


def write_whole(data: bytes, file: Path) -> None:
    """Into a temporary file beside it, onto the disk, then into place; what was there stays until then.

    In an object store, which is no ``Path``, a file appears whole or not at all by itself.
    """
    remote: Any = None if isinstance(file, Path) else file
    if remote is not None:
        remote.write_bytes(data)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise OSError(error.errno, f"{file} could not be written: {error.strerror or error}") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
