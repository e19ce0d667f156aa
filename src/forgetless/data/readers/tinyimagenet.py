"""Tiny-ImageNet: ``tiny-imagenet-200/train/<wnid>/images/*.JPEG``; its validation set is the test set."""

from __future__ import annotations

from pathlib import Path

import torch

from forgetless.data.readers.files import corrupt, existing
from forgetless.data.readers.images import decode_cached
from forgetless.data.stream import Split


def read(root: Path) -> tuple[Split, Split]:
    """Return the training and test examples."""
    folder = root / "tiny-imagenet-200"
    wnids = existing(folder / "wnids.txt", "tinyimagenet").read_text().split()
    labels = {wnid: label for label, wnid in enumerate(sorted(wnids))}
    train = [(path, labels[wnid]) for wnid in labels for path in sorted((folder / "train" / wnid).rglob("*.JPEG"))]
    lines = existing(folder / "val" / "val_annotations.txt", "tinyimagenet").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    test = [(folder / "val" / "images" / file, labels[wnid]) for file, wnid, *_ in rows]
    if (len(wnids), len(train), len(test)) != (200, 100_000, 10_000):
        reason = (
            f"it has {len(wnids)} classes, {len(train)} training and {len(test)} test images, "
            "expected 200, 100000 and 10000"
        )
        raise corrupt(folder, "tinyimagenet", reason)
    train_split, test_split = (
        Split(
            decode_cached([path for path, _ in examples], 64, root, f"tinyimagenet-{part}"),
            torch.tensor([label for _, label in examples]),
        )
        for part, examples in (("train", train), ("test", test))
    )
    return train_split, test_split
