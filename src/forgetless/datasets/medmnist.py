"""MedMNIST (Yang et al. 2023): ``organamnist.npz``, ``pathmnist.npz``; train and test as published."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy
import torch

from forgetless.datasets.files import damaged, need
from forgetless.stream import Split


def read(root: Path, name: str) -> tuple[Split, Split]:
    path = need(root / f"{name}.npz", name)
    try:
        with numpy.load(path, allow_pickle=False) as data:
            arrays = {key: data[key] for part in ("train", "test") for key in (f"{part}_images", f"{part}_labels")}
    except (ValueError, OSError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(path, name, str(error)) from None
    splits = []
    for part in ("train", "test"):
        images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"]
        if images.dtype != numpy.uint8 or images.ndim not in (3, 4) or len(images) != len(labels):
            raise damaged(path, name, f"{part}: images {images.dtype} {images.shape}, labels {labels.shape}")
        x = torch.from_numpy(images)
        x = x[:, None] if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
        splits.append(Split(x, torch.from_numpy(labels.reshape(-1).astype(numpy.int64))))
    return splits[0], splits[1]
