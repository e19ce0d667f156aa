"""Folders of image files, decoded once and kept as arrays beside the data, so that the second start is instant."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch
from torch import Tensor

from forgetless.data.readers.files import DataError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp")


def decode(paths: Sequence[Path], size: int | None) -> Tensor:
    """RGB images as (count, 3, height, width) uint8, resized to ``size`` × ``size`` where that is given."""
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("reading image files needs pillow: pip install 'forgetless[images]'") from None

    def one(path: Path) -> numpy.ndarray:
        try:
            with Image.open(path) as image:
                colour = image.convert("RGB")
                if size is not None and colour.size != (size, size):
                    colour = colour.resize((size, size), Image.Resampling.BILINEAR)
                return numpy.asarray(colour)
        except (OSError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{path} is not readable as an image: {error}") from None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        arrays = list(pool.map(one, paths))
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise DataError(
            f"images of different sizes ({', '.join(map(str, sorted(shapes)))}): give size=… to resize them"
        )
    return torch.from_numpy(numpy.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def read_folder(folder: Path, size: int | None) -> tuple[Tensor, Tensor, list[str]]:
    """``folder/<class>/**/<image>``: images, labels by alphabetical order of the classes, and their names."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir())
    files = [sorted(p for p in (folder / name).rglob("*") if p.suffix.lower() in ENDINGS) for name in names]
    for name, found in zip(names, files, strict=True):
        if not found:
            raise DataError(f"{folder / name} holds no images")
    if not names:
        raise DataError(f"{folder} holds no folders of classes")
    labels = torch.tensor([label for label, found in enumerate(files) for _ in found])
    return decode([path for found in files for path in found], size), labels, names


def cached(folder: Path, name: str, read: dict[str, Sequence[Path]], size: int) -> dict[str, Tensor]:
    """Decoded images for each key, from ``folder/decoded/<name>-<key>.npy`` where they are there already."""
    decoded = {}
    for key, paths in read.items():
        path = folder / "decoded" / f"{name}-{key}-{len(paths)}x{size}.npy"
        if path.exists() and (kept := _kept(path, (len(paths), 3, size, size))) is not None:
            decoded[key] = torch.from_numpy(kept)
            continue
        decoded[key] = decode(paths, size)
        _write(path, decoded[key].numpy())
    return decoded


def _kept(path: Path, shape: tuple[int, ...]) -> numpy.ndarray | None:
    """The array in a file; None if it is not what was written there, and is to be made again."""
    try:
        array = numpy.load(path, mmap_mode="c", allow_pickle=False)  # copy on write: the file is never changed
    except Exception:  # npy has many ways to be wrong
        return None
    return array if isinstance(array, numpy.ndarray) and (array.dtype, array.shape) == (numpy.uint8, shape) else None


def _write(path: Path, array: numpy.ndarray) -> None:
    """Whole or not at all; a folder that cannot be written to only costs the time to decode again."""
    try:
        path.parent.mkdir(exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            numpy.save(file, array, allow_pickle=False)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
