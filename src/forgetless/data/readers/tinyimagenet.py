"""Tiny-ImageNet: ``tiny-imagenet-200/train/<wnid>/images/*.JPEG``; its validation set is the test set."""

from pathlib import Path

import torch

from forgetless.data.readers.files import corrupt, existing
from forgetless.data.readers.images import decode_cached, labelled_files
from forgetless.data.stream import Split


def read(root: Path) -> tuple[Split, Split]:
    """Return the training and test examples."""
    folder = root / "tiny-imagenet-200"
    wnids = existing(folder / "wnids.txt", "tinyimagenet").read_text().split()
    labels = {wnid: label for label, wnid in enumerate(sorted(wnids))}
    train, train_labels = labelled_files(folder / "train" / wnid for wnid in labels)
    lines = existing(folder / "val" / "val_annotations.txt", "tinyimagenet").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    test = [folder / "val" / "images" / file for file, *_ in rows]
    if (len(wnids), len(train), len(test)) != (200, 100_000, 10_000):
        counts = f"{len(wnids)} classes, {len(train)} training and {len(test)} test images"
        raise corrupt(folder, "tinyimagenet", f"it has {counts}, expected 200, 100000 and 10000")
    return (
        Split(decode_cached(train, 64, root, "tinyimagenet-train"), train_labels),
        Split(decode_cached(test, 64, root, "tinyimagenet-test"), torch.tensor([labels[wnid] for _, wnid, *_ in rows])),
    )
