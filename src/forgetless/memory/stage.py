"""Batches that wait, so that a buffer writes a few of them in one go, with the kernel launches of one."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from forgetless.memory.columns import Columns

ROWS = 4096
BYTES = 2**24  # waiting saves little where batches are large


@final
class Stage:
    """Copies of the rows of some batches, each as wide as the columns of the buffer."""

    def __init__(self, columns: Columns) -> None:
        row_bytes = sum(rows[0].nbytes for rows in columns.rows.values())
        self._columns, self._room = columns, min(ROWS, BYTES // max(1, row_bytes))
        self._rows: dict[str, Tensor] = {}  # allocated for the first batch
        self._by_numpy = False  # whether NumPy, which takes less time, can write to all of them
        self._filled = 0

    def add(self, batch: Mapping[str, Tensor], size: int) -> bool:
        """Copy a batch of this size; return False and copy nothing if it does not fit."""
        start, end = self._filled, self._filled + size
        padded = self._columns.padded(batch)
        if padded is None or end > self._room:
            return False
        if not self._rows:
            with torch.inference_mode(False):  # its tensors cannot be written to outside of it
                for name, rows in self._columns.rows.items():
                    self._rows[name] = rows.new_empty((self._room, *rows.shape[1:]))
            self._by_numpy = all(map(_is_for_numpy, self._rows.values()))
        for name, column in padded.items():
            if self._by_numpy:
                self._rows[name].numpy()[start:end] = column.numpy(force=True)
            else:
                self._rows[name][start:end] = column.detach()
        self._filled = end
        return True

    def rows(self) -> dict[str, Tensor]:
        """Return views of the rows that wait; empty if there are none."""
        return {name: rows[: self._filled] for name, rows in self._rows.items()} if self._filled else {}

    def release(self) -> dict[str, Tensor]:
        """Return what ``rows`` returns. The rows are then free for the next batches."""
        rows, self._filled = self.rows(), 0
        return rows


def _is_for_numpy(rows: Tensor) -> bool:
    """Return whether NumPy can write to rows: not on a GPU, nor in bfloat16."""
    try:
        rows.numpy()
    except TypeError:
        return False
    return True
