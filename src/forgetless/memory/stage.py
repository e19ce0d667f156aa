"""Batches that wait, so that a buffer writes a few of them in one go, with the kernel launches of one."""

from collections.abc import Mapping
from typing import Any, final

import numpy as np
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
        self._arrays: dict[str, np.ndarray[Any, Any] | None] = {}  # the same memory
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
                    self._arrays[name] = _array(self._rows[name])
        for name, column in padded.items():
            if (array := self._arrays[name]) is None:
                self._rows[name][start:end] = column.detach()
            else:
                array[start:end] = column.numpy(force=True)
        self._filled = end
        return True

    def rows(self) -> dict[str, Tensor]:
        """Return views of the rows that wait; empty if there are none."""
        return {name: rows[: self._filled] for name, rows in self._rows.items()} if self._filled else {}

    def release(self) -> dict[str, Tensor]:
        """Return what ``rows`` returns. The rows are then free for the next batches."""
        rows, self._filled = self.rows(), 0
        return rows


def _array(rows: Tensor) -> "np.ndarray[Any, Any] | None":
    """Return rows as a NumPy array, which takes less time to write to; None on a GPU and in bfloat16."""
    try:
        return rows.numpy()
    except TypeError:
        return None
