"""MedMNIST (Yang et al. 2023): ``organamnist.npz``, ``pathmnist.npz``; train and test as published."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy
import torch

from forgetless.data.readers.files import damaged, need
from forgetless.data.stream import Split

LIMIT = 1 << 32  # bytes of all arrays; those of PathMNIST have 270 million


def read(root: Path, name: str) -> tuple[Split, Split]:
    path = need(root / f"{name}.npz", name)
    try:
        with zipfile.ZipFile(path) as bundle:
            size = sum(info.file_size for info in bundle.infolist())
        if size > LIMIT:
            raise ValueError(f"{size} bytes unpacked, which is more than {LIMIT}")
        with numpy.load(path, allow_pickle=False) as data:
            arrays = {key: data[key] for part in ("train", "test") for key in (f"{part}_images", f"{part}_labels")}
    except Exception as error:  # zip and npy have many ways to be wrong
        raise damaged(path, name, f"{type(error).__name__}: {error}") from None
    splits = []
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        right = images.dtype == numpy.uint8 and images.ndim in (3, 4) and labels.dtype.kind in "iu" and labels.ndim > 0
        if not right or len(images) != labels.size:
            raise damaged(path, name, f"{part}: images {images.dtype} {images.shape}, labels {labels.shape}")
        x = torch.from_numpy(images)
        x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
        splits.append(Split(x, torch.from_numpy(labels.reshape(-1).astype(numpy.int64))))
    return splits[0], splits[1]
