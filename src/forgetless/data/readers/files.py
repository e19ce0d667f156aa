"""Where data sets are stored, and the errors for files that are missing or corrupt."""

import hashlib
import lzma
import os
import struct
import tarfile
import tokenize
import zipfile
import zlib
from pathlib import Path

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")

# What zip, tar, gzip, npy and image decoders raise for corrupt files (benchmarks/fuzz.py).
UNREADABLE: tuple[type[Exception], ...] = (
    OSError, EOFError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError, MemoryError, SyntaxError,
    struct.error, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, tokenize.TokenError,
)  # fmt: skip


class DataError(RuntimeError):
    """Data is missing or corrupt. The message names the file and what to do."""


def data_folder() -> Path:
    """Return the folder of all data sets: ``FORGETLESS_DATA``, or the platform's cache folder."""
    if folder := os.environ.get("FORGETLESS_DATA"):
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("forgetless")) / "data"


def md5(path: Path) -> str:
    """Return the md5 checksum of a file."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def existing(path: Path, dataset: str) -> Path:
    """Return ``path``, or raise ``DataError`` if nothing is there."""
    if not path.exists():
        raise DataError(f"{path} is missing: run `forgetless data get {dataset}`, or set FORGETLESS_DATA to its folder")
    return path


def corrupt(path: Path, dataset: str, reason: str) -> DataError:
    """Return the error for a corrupt file of a data set."""
    return DataError(f"{path} is corrupt ({reason}): delete it and run `forgetless data get {dataset}`")
