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
        counts = f"{len(wnids)} classes, {len(train)} training and {len(test)} test images"
        raise corrupt(folder, "tinyimagenet", f"it has {counts}, expected 200, 100000 and 10000")
    return _decode(train, root, "train"), _decode(test, root, "test")


def _decode(examples: list[tuple[Path, int]], root: Path, part: str) -> Split:
    x = decode_cached([path for path, _ in examples], 64, root, f"tinyimagenet-{part}")
    return Split(x, torch.tensor([label for _, label in examples]))
