"""CIFAR-10, binary version: ``cifar-10-batches-bin/*.bin``, rows of one label byte and 3,072 pixels."""

from pathlib import Path

import numpy
import torch

from forgetless.data.readers.files import corrupt, existing
from forgetless.data.stream import Split

ROW = 1 + 3 * 32 * 32


def read(root: Path) -> tuple[Split, Split]:
    """Return the training and test examples."""
    folder = root / "cifar-10-batches-bin"
    train = [_read_batch(folder / f"data_batch_{number}.bin") for number in range(1, 6)]
    x, y = torch.cat([split.x for split in train]), torch.cat([split.y for split in train])
    return Split(x, y), _read_batch(folder / "test_batch.bin")


def _read_batch(path: Path) -> Split:
    data = numpy.fromfile(existing(path, "cifar10"), numpy.uint8)
    if data.size != 10_000 * ROW:
        raise corrupt(path, "cifar10", f"it has {data.size} bytes, expected {10_000 * ROW}")
    rows = torch.from_numpy(data.reshape(-1, ROW))
    y = rows[:, 0].to(torch.int64)
    if int(y.max()) > 9:
        raise corrupt(path, "cifar10", f"it has label {int(y.max())}, expected 0 to 9")
    return Split(rows[:, 1:].reshape(-1, 3, 32, 32).contiguous(), y)
