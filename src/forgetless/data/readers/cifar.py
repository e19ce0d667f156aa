"""CIFAR-10, binary version: ``cifar-10-batches-bin/*.bin``, rows of one label byte and 3,072 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy
import torch

from forgetless.data.readers.files import damaged, need
from forgetless.data.stream import Split

ROW = 1 + 3 * 32 * 32


def read(root: Path) -> tuple[Split, Split]:
    folder = root / "cifar-10-batches-bin"
    train = [_batch(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    x, y = torch.cat([split.x for split in train]), torch.cat([split.y for split in train])
    return Split(x, y), _batch(folder / "test_batch.bin")


def _batch(path: Path) -> Split:
    data = numpy.fromfile(need(path, "cifar10"), numpy.uint8)
    if data.size != 10_000 * ROW:
        raise damaged(path, "cifar10", f"{data.size} bytes, must be {10_000 * ROW}")
    rows = torch.from_numpy(data.reshape(-1, ROW))
    y = rows[:, 0].to(torch.int64)
    if int(y.max()) > 9:
        raise damaged(path, "cifar10", f"label {int(y.max())}, must be 0 to 9")
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), y)
