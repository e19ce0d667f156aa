"""MNIST in its own idx format: ``MNIST/raw/*-ubyte.gz``, or unpacked."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy
import torch
from torch import Tensor

from forgetless.data.readers.files import damaged, need
from forgetless.data.stream import Split

LIMIT = 1 << 28  # bytes of an unpacked file; the largest of MNIST has 47 million


def read(root: Path) -> tuple[Split, Split]:
    folder = root / "MNIST" / "raw"
    splits = []
    for part in ("train", "t10k"):
        x = _idx(folder, f"{part}-images-idx3-ubyte")
        y = _idx(folder, f"{part}-labels-idx1-ubyte")
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            sizes = f"images {tuple(x.shape)}, labels {tuple(y.shape)}"
            raise damaged(folder / f"{part}-images-idx3-ubyte", "mnist", sizes)
        splits.append(Split(x[:, None], y.to(torch.int64)))
    return splits[0], splits[1]


def _idx(folder: Path, name: str) -> Tensor:
    """An idx file: two zero bytes, 0x08 for uint8, the number of dimensions, the sizes, the bytes."""
    plain = folder / name
    path = plain if plain.exists() else need(folder / f"{name}.gz", "mnist")
    try:
        with path.open("rb") if path is plain else gzip.open(path) as file:
            data = file.read(LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, "mnist", f"not readable as gzip: {error}") from None
    if len(data) > LIMIT:
        raise damaged(path, "mnist", f"more than {LIMIT} bytes")
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise damaged(path, "mnist", "no idx header")
    dimensions = data[3]
    start = 4 + 4 * dimensions
    if len(data) < start:
        raise damaged(path, "mnist", "header cut off")
    shape = struct.unpack(f">{dimensions}I", data[4:start])
    size = math.prod(shape)
    if len(data) != start + size:
        raise damaged(path, "mnist", f"{len(data) - start} bytes of values, its header says {size}")
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape).copy())
