"""The digits that scikit-learn ships: 1,797 images of 8×8 pixels. No download."""

from importlib.util import find_spec
from pathlib import Path

import numpy
import torch

from forgetless.data.stream import Split


def read() -> tuple[Split, Split]:
    """Return the training and test examples; every fifth image is a test image.

    Pixels are 0 to 16 in the original and 0 to 255 here. The file is read directly, since importing scikit-learn takes
    seconds.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImportError("seq-digits needs scikit-learn: pip install 'forgetless[digits]'")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    values = torch.from_numpy(numpy.loadtxt(file, delimiter=","))  # 64 pixels and the label per row
    x = (values[:, :-1] * 255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    examples = Split(x, values[:, -1].to(torch.int64))
    fifth = torch.arange(len(examples)) % 5 == 0
    return examples.where(~fifth), examples.where(fifth)
