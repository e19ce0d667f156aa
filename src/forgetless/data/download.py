"""Download data sets from their official addresses and check them against their published checksums.

Nothing that is downloaded is unpickled. From an archive only plain files and folders below the target are unpacked.
"""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from forgetless.data.readers.files import IMAGE_ENDINGS, UNREADABLE, DataError, md5


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, its md5, and the folder below the data folder in which it is stored."""

    address: str
    md5: str
    folder: str = "."

    @property
    def path(self) -> str:
        """The path below the data folder."""
        return (Path(self.folder) / self.address.rpartition("/")[2]).as_posix()


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and what its folder must contain.

    Attributes:
        summary: What the data set is.
        megabytes: The size of the download.
        files: The files to download.
        unpacked: If the files are archives, the md5 of the files inside by path.
        folders: The number of images below each folder.
        by_hand: How users get the data set if it has no address.
    """

    summary: str
    megabytes: int
    files: tuple[RemoteFile, ...] = ()
    archive: bool = False
    unpacked: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, int] = field(default_factory=dict)
    by_hand: str = ""

    @property
    def contents(self) -> Mapping[str, str]:
        """The md5 of every file that must exist, by path."""
        return self.unpacked if self.archive else {file.path: file.md5 for file in self.files}


_MNIST = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_CIFAR = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
_MNIST_SERVER = "https://ossci-datasets.s3.amazonaws.com/mnist"
_ZENODO = "https://zenodo.org/records/10519652/files"

SOURCES: Mapping[str, Source] = MappingProxyType({
    "mnist": Source(
        "handwritten digits, 70,000 of 28×28", 12,
        tuple(RemoteFile(f"{_MNIST_SERVER}/{name}", digest, "MNIST/raw") for name, digest in _MNIST.items()),
    ),
    "cifar10": Source(
        "photographs of 10 classes, 60,000 of 32×32", 170,
        (RemoteFile("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),),
        archive=True,
        unpacked={f"cifar-10-batches-bin/{name}": digest for name, digest in _CIFAR.items()},
    ),
    "organamnist": Source(
        "abdominal CT, 11 organs, 58,830 of 28×28", 38,
        (RemoteFile(f"{_ZENODO}/organamnist.npz", "68e3f8846a6bd62f0c9bf841c0d9eacc"),),
    ),
    "pathmnist": Source(
        "colon pathology, 9 tissues, 107,180 of 28×28", 206,
        (RemoteFile(f"{_ZENODO}/pathmnist.npz", "a8b06965200029087d5bd730944a56c1"),),
    ),
    "tinyimagenet": Source(
        "photographs of 200 classes, 110,000 of 64×64", 248,
        (RemoteFile("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),),
        archive=True,
        folders={"tiny-imagenet-200/train": 100_000, "tiny-imagenet-200/val": 10_000},
    ),
    "pacs": Source(
        "7 classes in 4 styles, 9,991 images", 180,
        folders={"PACS/sketch": 3929, "PACS/cartoon": 2344, "PACS/art_painting": 2048, "PACS/photo": 1670},
        by_hand="request it from its authors, https://dali-dl.github.io/project_iccv2017.html, and unpack it as "
        "PACS/<domain>/<class>/<image>",
    ),
})  # fmt: skip

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


def get(name: str, root: Path, *, progress: bool = True, source: Source | None = None) -> None:
    """Download a data set into ``root``. Intact files are not downloaded again; archives are.

    Args:
        name: The name of the data set, a key of ``SOURCES``.
        root: The data folder.
        progress: Whether to show a progress bar.
        source: Where to download from. Default: ``SOURCES[name]``.
    """
    source = source or SOURCES[name]
    if source.by_hand:
        raise DataError(f"{name} cannot be downloaded: {source.by_hand} below {root}")
    try:
        import pooch
        import requests
    except ImportError:
        raise ImportError("downloading data needs pooch: pip install 'forgetless[data]'") from None
    root.mkdir(parents=True, exist_ok=True)
    for file in source.files:
        target = root / file.path
        try:
            pooch.retrieve(
                file.address,
                known_hash=f"md5:{file.md5}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(progressbar=progress, timeout=60),
            )
        except (requests.RequestException, OSError) as error:
            if error.errno in _DISK:
                raise
            raise DataError(
                f"{name}: downloading {file.address} failed ({type(error).__name__}); check the network connection"
            ) from None
        except ValueError as error:
            raise DataError(f"{name}: the download of {file.address} is corrupt: {error}") from None
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
            members = zipped.infolist()
            plain = [(member.external_attr >> 16) & 0o170000 != 0o120000 for member in members]  # 0o12…: a link
            _check([member.filename for member in members], plain, sum(m.file_size for m in members), archive)
            zipped.extractall(folder)
    else:
        with tarfile.open(archive) as tar:
            entries = tar.getmembers()
            plain = [entry.isfile() or entry.isdir() for entry in entries]
            _check([entry.name for entry in entries], plain, sum(entry.size for entry in entries), archive)
            tar.extractall(folder, filter="data")


def _check(names: list[str], plain: list[bool], size: int, archive: Path) -> None:
    """Raise ``DataError`` if a member is not a plain file or lies outside of the target, or if they are too large."""
    for name, is_plain in zip(names, plain, strict=True):
        parts = name.replace("\\", "/").split("/")
        if not parts[0] or ".." in parts or ":" in parts[0]:
            raise DataError(f"{archive.name} is refused: it holds {name!r}, which lies outside of the target folder")
        if not is_plain:
            raise DataError(f"{archive.name} is refused: it holds {name!r}, which is not a plain file")
    if size > LIMIT:
        raise DataError(f"{archive.name} is refused: it unpacks to more than {LIMIT >> 30} GiB")
