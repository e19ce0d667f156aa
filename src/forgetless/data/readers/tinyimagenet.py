"""Tiny-ImageNet: ``tiny-imagenet-200/train/<wnid>/images/*.JPEG``; its validation set is the test set."""

from __future__ import annotations

from pathlib import Path

import torch

from forgetless.data.readers.files import damaged, need
from forgetless.data.readers.images import cached
from forgetless.data.stream import Split


def read(root: Path) -> tuple[Split, Split]:
    folder = root / "tiny-imagenet-200"
    wnids = need(folder / "wnids.txt", "tinyimagenet").read_text().split()
    label = {wnid: i for i, wnid in enumerate(sorted(wnids))}
    train = [(path, label[w]) for w in label for path in sorted((folder / "train" / w).rglob("*.JPEG"))]
    table = need(folder / "val" / "val_annotations.txt", "tinyimagenet").read_text().splitlines()
    fields = [line.split("\t") for line in table]
    test = [(folder / "val" / "images" / row[0], label[row[1]]) for row in fields]
    if (len(wnids), len(train), len(test)) != (200, 100_000, 10_000):
        why = f"{len(wnids)} classes, {len(train)} training and {len(test)} test images, must be 200, 100000, 10000"
        raise damaged(folder, "tinyimagenet", why)
    images = cached(root, "tinyimagenet", {"train": [p for p, _ in train], "test": [p for p, _ in test]}, 64)
    return (
        Split(images["train"], torch.tensor([y for _, y in train])),
        Split(images["test"], torch.tensor([y for _, y in test])),
    )
