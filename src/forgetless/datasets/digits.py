"""scikit-learn's bundled digits: 1,797 real 8×8 images, offline."""

from __future__ import annotations

import torch

from forgetless.stream import Split


def read() -> tuple[Split, Split]:
    """Every fifth image is a test image. Pixels, 0 to 16 in the original, are spread over 0 to 255."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("seq-digits needs scikit-learn: pip install 'forgetless[digits]'") from None
    data = load_digits()
    x = (torch.tensor(data.images) * 255 / 16).round().to(torch.uint8)[:, None]
    whole = Split(x, torch.tensor(data.target, dtype=torch.int64))
    rows = torch.arange(len(whole))
    return whole.of(rows[rows % 5 != 0]), whole.of(rows[rows % 5 == 0])
