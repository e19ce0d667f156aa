"""Fetch data sets from their official places, checked by their published checksums. pooch does the work.

Nothing that is downloaded is unpickled; of an archive only plain files and folders below the target are taken.
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

from forgetless.data.readers.files import DataError, md5


@dataclass(frozen=True)
class Source:
    """Files to fetch as (address, md5, path below the data folder), or an archive to unpack, and what is there then."""

    summary: str
    megabytes: int
    files: tuple[tuple[str, str, str], ...] = ()
    archive: bool = False
    contents: Mapping[str, str] = field(default_factory=dict)  # path -> md5, of what is there in the end
    folders: Mapping[str, int] = field(default_factory=dict)  # folder -> number of images below it
    by_hand: str = ""


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
_MED = {"organamnist.npz": "68e3f8846a6bd62f0c9bf841c0d9eacc", "pathmnist.npz": "a8b06965200029087d5bd730944a56c1"}
_ZENODO = "https://zenodo.org/records/10519652/files/"

SOURCES: Mapping[str, Source] = MappingProxyType({
    "mnist": Source(
        "handwritten digits, 70,000 of 28×28", 12,
        tuple((f"https://ossci-datasets.s3.amazonaws.com/mnist/{n}", h, f"MNIST/raw/{n}") for n, h in _MNIST.items()),
        contents={f"MNIST/raw/{name}": digest for name, digest in _MNIST.items()},
    ),
    "cifar10": Source(
        "photographs of 10 classes, 60,000 of 32×32", 170,
        (("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", ""),),
        archive=True,
        contents={f"cifar-10-batches-bin/{name}": digest for name, digest in _CIFAR.items()},
    ),
    "organamnist": Source(
        "abdominal CT, 11 organs, 58,830 of 28×28", 38,
        ((f"{_ZENODO}organamnist.npz", _MED["organamnist.npz"], "organamnist.npz"),),
        contents={"organamnist.npz": _MED["organamnist.npz"]},
    ),
    "pathmnist": Source(
        "colon pathology, 9 tissues, 107,180 of 28×28", 206,
        ((f"{_ZENODO}pathmnist.npz", _MED["pathmnist.npz"], "pathmnist.npz"),),
        contents={"pathmnist.npz": _MED["pathmnist.npz"]},
    ),
    "tinyimagenet": Source(
        "photographs of 200 classes, 110,000 of 64×64", 248,
        (("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", ""),),
        archive=True,
        folders={"tiny-imagenet-200/train": 100_000, "tiny-imagenet-200/val": 10_000},
    ),
    "pacs": Source(
        "7 classes in 4 styles, 9,991 images", 180,
        folders={"PACS/sketch": 3929, "PACS/cartoon": 2344, "PACS/art_painting": 2048, "PACS/photo": 1670},
        by_hand="its authors give it out by hand, https://dali-dl.github.io/project_iccv2017.html: unpack it as "
        "PACS/<domain>/<class>/<image>",
    ),
})  # fmt: skip


DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EIO,
)  # not a network's or an archive's fault
LIMIT = 1 << 33  # bytes of an unpacked archive; the largest has half a GB


def problems(name: str, root: Path) -> list[str]:
    """What is missing or damaged of a data set; empty if it is whole."""
    source = SOURCES[name]
    found = []
    for path, digest in source.contents.items():
        if not (root / path).exists():
            found.append(f"{path} is missing")
        elif md5(root / path) != digest:
            found.append(f"{path} is damaged: its md5 is not {digest}")
    for folder, count in source.folders.items():
        images = sum(p.suffix.lower() in (".jpeg", ".jpg", ".png") for p in (root / folder).rglob("*"))
        if images != count:
            found.append(f"{folder} holds {images} images, must be {count}")
    return found


def get(name: str, root: Path, *, progress: bool = True, source: Source | None = None) -> None:
    """Fetch a data set into ``root``; files that are there and whole are not fetched again, an archive is."""
    source = SOURCES[name] if source is None else source
    if source.by_hand:
        raise DataError(f"{name} has no address to fetch it from: {source.by_hand} below {root}")
    try:
        import pooch
        import requests
    except ImportError:
        raise ImportError("fetching data needs pooch: pip install 'forgetless[data]'") from None
    root.mkdir(parents=True, exist_ok=True)
    for address, digest, path in source.files:
        target = root / path if path else root / address.rpartition("/")[2]
        try:
            pooch.retrieve(
                address,
                known_hash=f"md5:{digest}",
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(progressbar=progress, timeout=60),
            )
        except (requests.RequestException, OSError) as error:
            if error.errno in DISK:
                raise
            raise DataError(
                f"{name}: {address} could not be fetched ({type(error).__name__}): is there a network?"
            ) from None
        except ValueError as error:
            raise DataError(f"{name}: what {address} gave is damaged: {error}") from None
        if source.archive:
            unpack(target, root)
            target.unlink()


def unpack(archive: Path, root: Path) -> None:
    """Plain files and folders below ``root``, in a folder of their own first, then moved into place."""
    with tempfile.TemporaryDirectory(dir=root) as place:
        try:
            _extract(archive, place)
        except DataError:
            raise
        except OSError as error:
            if error.errno in DISK:
                raise
            raise DataError(f"{archive.name} is damaged: {error}") from None
        except Exception as error:  # zip and tar have many ways to be wrong
            raise DataError(f"{archive.name} is damaged: {type(error).__name__}: {error}") from None
        for top in Path(place).iterdir():
            target = root / top.name
            if target.exists():
                shutil.rmtree(target) if target.is_dir() else target.unlink()
            os.replace(top, target)


def _extract(archive: Path, place: str) -> None:
    left = LIMIT
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as bundle:
            for info in bundle.infolist():
                _check_inside(info.filename, archive)
                if (info.external_attr >> 16) & 0o170000 == 0o120000:
                    raise DataError(f"{archive.name} holds a link, {info.filename}; refused")
                left = _check_room(left, info.file_size, archive)
            bundle.extractall(place)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            _check_inside(member.name, archive)
            if not (member.isfile() or member.isdir()):
                raise DataError(f"{archive.name} holds something that is no plain file, {member.name}; refused")
            left = _check_room(left, member.size, archive)
            tar.extract(member, place, filter="data")


def _check_room(left: int, size: int, archive: Path) -> int:
    """What is left of the room for an unpacked archive; an error if it is used up."""
    if size > left:
        raise DataError(f"{archive.name} unpacks to more than {LIMIT >> 30} GiB; refused")
    return left - size


def _check_inside(name: str, archive: Path) -> None:
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise DataError(f"{archive.name} holds {name!r}, which lies outside; refused")
