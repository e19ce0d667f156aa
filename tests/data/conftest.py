import gzip
import struct

import numpy
import pytest
import torch

from forgetless.data.stream import Split


@pytest.fixture
def labelled():
    """Return a function from labels to examples that hold their own number in every pixel."""

    def split(*labels):
        y = torch.tensor(labels)
        x = torch.arange(len(y), dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 2, 2).clone()
        return Split(x, y)

    return split


@pytest.fixture
def mnist_folder(tmp_path):
    """Return a data folder with a tiny MNIST: six training and three test images of 2×2 pixels."""

    def idx(array):
        return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()

    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count in (("train", 6), ("t10k", 3)):
        x = numpy.arange(count * 4, dtype=numpy.uint8).reshape(count, 2, 2)
        y = numpy.arange(count, dtype=numpy.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    return tmp_path
