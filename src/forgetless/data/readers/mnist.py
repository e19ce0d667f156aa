"""MNIST in its own idx format: ``MNIST/raw/*-ubyte.gz``, or unpacked."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy
import torch
from torch import Tensor

from forgetless.data.readers.files import corrupt, existing
from forgetless.data.stream import Split

LIMIT = 1 << 28  # bytes of an unpacked file; the largest of MNIST has 47 million


def read(root: Path) -> tuple[Split, Split]:
    """Return the training and test examples."""
    folder = root / "MNIST" / "raw"
    return _read_split(folder, "train"), _read_split(folder, "t10k")


def _read_split(folder: Path, part: str) -> Split:
    x = _read_idx(folder, f"{part}-images-idx3-ubyte")
    y = _read_idx(folder, f"{part}-labels-idx1-ubyte")
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        shapes = f"images {tuple(x.shape)}, labels {tuple(y.shape)}"
        raise corrupt(folder / f"{part}-images-idx3-ubyte", "mnist", shapes)
    return Split(x[:, None], y.to(torch.int64))


def _read_idx(folder: Path, name: str) -> Tensor:
    """Read an idx file: two zero bytes, 0x08 for uint8, the number of dimensions, the sizes, the bytes."""
    plain = folder / name
    path = plain if plain.exists() else existing(folder / f"{name}.gz", "mnist")
    try:
        with path.open("rb") if path is plain else gzip.open(path) as file:
            data = file.read(LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise corrupt(path, "mnist", f"not readable as gzip: {error}") from None
    if len(data) > LIMIT:
        raise corrupt(path, "mnist", f"more than {LIMIT} bytes")
    if len(data) < 4 or data[:3] != b"\0\0\x08" or len(data) < (start := 4 + 4 * data[3]):
        raise corrupt(path, "mnist", "no complete idx header")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise corrupt(path, "mnist", f"{len(data) - start} bytes of values, expected {math.prod(shape)}")
    return torch.from_numpy(numpy.frombuffer(data, numpy.uint8, offset=start).reshape(shape).copy())
