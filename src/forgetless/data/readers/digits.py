"""scikit-learn's bundled digits: 1,797 real 8×8 images, offline."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch

from forgetless.data.stream import Split


def read() -> tuple[Split, Split]:
    """Every fifth image is a test image. Pixels, 0 to 16 in the original, are spread over 0 to 255."""
    values = torch.from_numpy(_table())
    x = (values[:, :-1] * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    whole = Split(x, values[:, -1].to(torch.int64))
    rows = torch.arange(len(whole))
    return whole.of(rows[rows % 5 != 0]), whole.of(rows[rows % 5 == 0])


def _table() -> numpy.ndarray[tuple[int, int], numpy.dtype[numpy.float64]]:
    """64 pixels and the label in each row; from scikit-learn's file, since importing it all takes seconds."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError("seq-digits needs scikit-learn: pip install 'forgetless[digits]'")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        return numpy.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    data = load_digits()
    return numpy.column_stack([data.data, data.target])
