"""Download data sets from their official addresses and check them against their published checksums.

Nothing that is downloaded is unpickled. From an archive only plain files and folders below the target are unpacked.
"""

import errno
import json
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISLNK

from forgetless.config.extras import load_extra
from forgetless.data.readers.files import IMAGE_ENDINGS, UNREADABLE, DataError, md5


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what its folder must contain, as ``sources.json`` lists it."""

    summary: str
    megabytes: int
    files: Mapping[str, str] = field(default_factory=dict)  # the md5 of each file to download, by address
    folder: str = ""  # where the files are stored, below the data folder
    archive: bool = False  # whether the files are archives, which are unpacked and then deleted
    unpacked: Mapping[str, str] = field(default_factory=dict)  # the md5 of each file in the archives, by path
    folders: Mapping[str, int] = field(default_factory=dict)  # the number of images below each folder
    by_hand: str = ""  # how users get the data set if it has no address

    def path(self, address: str) -> Path:
        """Return the path below the data folder of the file at an address."""
        return Path(self.folder, address.rpartition("/")[2])

    @property
    def contents(self) -> Mapping[str, str]:
        """The md5 of every file that must exist, by path."""
        downloaded = {self.path(address).as_posix(): digest for address, digest in self.files.items()}
        return self.unpacked if self.archive else downloaded


SOURCES: Mapping[str, Source] = {
    name: Source(**values)
    for name, values in json.loads(Path(__file__).with_name("sources.json").read_text("utf-8")).items()
}
LIMIT = 1 << 33  # bytes of an unpacked archive; the largest has half a GB
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO)  # neither network nor archive


def problems(name: str, root: Path) -> list[str]:
    """Return what is missing or corrupt in a data set below ``root``; empty if it is intact."""
    source = SOURCES[name]
    found = []
    for path, digest in source.contents.items():
        if not (root / path).exists():
            found.append(f"{path} is missing")
        elif md5(root / path) != digest:
            found.append(f"{path} is corrupt: its md5 is not {digest}")
    for folder, count in source.folders.items():
        images = sum(path.suffix.lower() in IMAGE_ENDINGS for path in (root / folder).rglob("*"))
        if images != count:
            found.append(f"{folder} holds {images} images; it must hold {count}")
    return found


def get(name: str, root: Path, *, progress: bool = True) -> None:
    """Download a data set of ``SOURCES`` into ``root``. Intact files are not downloaded again; archives are."""
    source = SOURCES[name]
    if source.by_hand:
        raise DataError(f"{name} cannot be downloaded: {source.by_hand} below {root}")
    pooch, requests = (load_extra(name, "data", "downloading data needs pooch") for name in ("pooch", "requests"))
    root.mkdir(parents=True, exist_ok=True)
    downloader = pooch.HTTPDownloader(progressbar=progress, timeout=60)
    for address, digest in source.files.items():
        target = root / source.path(address)
        try:
            pooch.retrieve(address, f"md5:{digest}", target.name, target.parent, downloader=downloader)
        except (requests.RequestException, OSError) as error:
            if error.errno in _DISK:
                raise
            reason = f"failed ({type(error).__name__}); check the network connection"
            raise DataError(f"{name}: downloading {address} {reason}") from None
        except ValueError as error:
            raise DataError(f"{name}: the download of {address} is corrupt: {error}") from None
        if source.archive:
            unpack(target, root)
            target.unlink()


def unpack(archive: Path, root: Path) -> None:
    """Unpack the plain files and folders of an archive below ``root``: first into a new folder, then into place."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        try:
            _extract(archive, folder)
        except DataError:
            raise
        except UNREADABLE as error:
            if isinstance(error, OSError) and error.errno in _DISK:
                raise
            raise DataError(f"{archive.name} is corrupt: {type(error).__name__}: {error}") from None
        for path in Path(folder).iterdir():
            target = root / path.name
            if target.exists():
                shutil.rmtree(target) if target.is_dir() else target.unlink()
            os.replace(path, target)


def _extract(archive: Path, folder: str) -> None:
    """Extract a zip or tar archive after a check of all its members."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            infos = zipped.infolist()
            _check(archive, [(info.filename, not S_ISLNK(info.external_attr >> 16), info.file_size) for info in infos])
            zipped.extractall(folder)
    else:
        with tarfile.open(archive) as tar:
            _check(archive, [(info.name, info.isfile() or info.isdir(), info.size) for info in tar.getmembers()])
            tar.extractall(folder, filter="data")


def _check(archive: Path, members: list[tuple[str, bool, int]]) -> None:
    """Raise ``DataError`` for a member outside of the target or not a plain file, or if all are too large."""
    for name, plain, _ in members:
        parts = name.replace("\\", "/").split("/")
        if not parts[0] or ".." in parts or ":" in parts[0]:
            raise DataError(f"{archive.name} is refused: it holds {name!r}, which lies outside of the target folder")
        if not plain:
            raise DataError(f"{archive.name} is refused: it holds {name!r}, which is not a plain file")
    if sum(size for _, _, size in members) > LIMIT:
        raise DataError(f"{archive.name} is refused: it unpacks to more than {LIMIT >> 30} GiB")
