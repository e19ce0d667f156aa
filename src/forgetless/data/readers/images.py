"""Read folders of image files. Decoded images are cached as arrays next to the data, so a second start is instant."""

import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy
import torch
from torch import Tensor

from forgetless.config.extras import load_extra
from forgetless.data.readers.files import IMAGE_ENDINGS, UNREADABLE, DataError

PARTS = {"train", "training", "test", "val", "valid", "validation"}  # of a data set


def class_folders(folder: Path) -> list[Path]:
    """Return the folders of classes in alphabetical order; raise ``DataError`` if they are the parts of a data set."""
    classes = _folders(folder)
    names = [path.name for path in classes]
    if names and {name.lower() for name in names} <= PARTS:
        raise DataError(
            f"{folder} holds the folders {', '.join(names)}, so the classes seem to be one level below; "
            f"give one of them, such as {classes[0]}"
        )
    return classes


def labelled_files(folders: Iterable[Path]) -> tuple[list[Path], Tensor]:
    """Return all image files below each folder, sorted, and for each the number of its folder."""
    files, labels = [], []
    for label, folder in enumerate(folders):
        found = (path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
        images = sorted(path for path in found if not any(map(_is_hidden, path.relative_to(folder).parts)))
        files += images
        labels += [label] * len(images)
    return files, torch.tensor(labels)


def decode(paths: Sequence[Path], size: int | None) -> Tensor:
    """Return RGB images as uint8 (count, 3, height, width), resized to ``size`` × ``size`` if that is given."""
    Image = load_extra("PIL.Image", "images", "reading image files needs pillow")

    def decode_file(path: Path) -> numpy.ndarray:
        try:
            with Image.open(path) as image:
                colour = image.convert("RGB")
                if size is not None and colour.size != (size, size):
                    colour = colour.resize((size, size), Image.Resampling.BILINEAR)
                return numpy.asarray(colour)
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} is not readable as an image: {error}") from None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        arrays = list(pool.map(decode_file, paths))
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"images have different sizes ({', '.join(map(str, sorted(shapes)))}); size=… resizes them")
    return torch.from_numpy(numpy.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def read_folder(folder: Path, size: int | None) -> tuple[Tensor, Tensor]:
    """Return the images of ``folder/<class>/**/<image>`` and their labels. Classes are in alphabetical order."""
    classes = class_folders(folder)
    if not classes:
        raise DataError(f"{folder} holds no folders of classes")
    files, labels = labelled_files(classes)
    if empty := set(range(len(classes))) - set(labels.tolist()):
        raise DataError(f"{classes[min(empty)]} holds no images")
    return decode(files, size), labels


def decode_cached(paths: Sequence[Path], size: int, folder: Path, name: str) -> Tensor:
    """Return decoded images, from a file in ``folder/decoded`` if they were decoded before."""
    file = folder / "decoded" / f"{name}-{len(paths)}x{size}.npy"
    array = read_decoded(file, (len(paths), 3, size, size))
    if array is None:
        array = decode(paths, size).numpy()
        with suppress(OSError):  # a folder that is not writable only costs the time to decode again
            file.parent.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent) as temporary:  # the file is complete or absent
                written = Path(temporary) / file.name
                numpy.save(written, array, allow_pickle=False)
                os.replace(written, file)
    return torch.from_numpy(array)


def read_decoded(path: Path, shape: tuple[int, ...]) -> numpy.ndarray | None:
    """Return the uint8 array of this shape in a file, as a memory map; ``None`` if the file is missing or corrupt."""
    try:
        array = numpy.load(path, mmap_mode="c", allow_pickle=False)  # copy on write: the file never changes
    except UNREADABLE:
        return None
    return array if isinstance(array, numpy.ndarray) and (array.dtype, array.shape) == (numpy.uint8, shape) else None


def _folders(folder: Path) -> list[Path]:
    """Return the folders in a folder in alphabetical order, without hidden ones."""
    return sorted(path for path in folder.glob("*") if path.is_dir() and not _is_hidden(path.name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".")
