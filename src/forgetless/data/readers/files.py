"""Where data is, and whether it is whole."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


class DataError(RuntimeError):
    """Data that is missing, truncated or corrupted; says which file and what to do."""


def root() -> Path:
    """The folder of all data: ``FORGETLESS_DATA``, or the platform's cache folder."""
    given = os.environ.get("FORGETLESS_DATA")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("forgetless")) / "data"


def md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def need(path: Path, dataset: str) -> Path:
    """The path, if a file is there."""
    if not path.exists():
        raise DataError(f"{path} is missing: run `forgetless data get {dataset}`, or set FORGETLESS_DATA to its folder")
    return path


def damaged(path: Path, dataset: str, why: str) -> DataError:
    return DataError(f"{path} is damaged ({why}): delete it and run `forgetless data get {dataset}`")
