"""MedMNIST (Yang et al. 2023): ``organamnist.npz`` and ``pathmnist.npz``, training and test sets as published."""

import zipfile
from pathlib import Path

import numpy
import torch

from forgetless.data.readers.files import UNREADABLE, corrupt, existing
from forgetless.data.stream import Split

LIMIT = 1 << 32  # bytes of all arrays; those of PathMNIST have 270 million


def read(root: Path, name: str) -> tuple[Split, Split]:
    """Return the training and test examples of the MedMNIST data set ``name``."""
    path = existing(root / f"{name}.npz", name)
    try:
        with zipfile.ZipFile(path) as bundle:
            size = sum(info.file_size for info in bundle.infolist())
        if size > LIMIT:
            raise ValueError(f"it unpacks to {size} bytes, more than {LIMIT}")
        with numpy.load(path, allow_pickle=False) as data:
            train, test = ((data[f"{part}_images"], data[f"{part}_labels"]) for part in ("train", "test"))
    except UNREADABLE as error:
        raise corrupt(path, name, f"{type(error).__name__}: {error}") from None
    for images, labels in (train, test):
        is_valid = images.dtype == numpy.uint8 and images.ndim in (3, 4) and labels.dtype.kind in "iu"
        if not is_valid or not labels.ndim or len(images) != labels.size:
            raise corrupt(path, name, f"images {images.dtype} {images.shape}, labels {labels.shape}")
    return _split(*train), _split(*test)


def _split(images: numpy.ndarray, labels: numpy.ndarray) -> Split:
    x = torch.from_numpy(images)
    x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
    return Split(x, torch.from_numpy(labels.reshape(-1).astype(numpy.int64)))
