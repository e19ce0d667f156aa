"""Batches that wait, so that a buffer writes a few of them in one go, with the kernel launches of one."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from forgetless.memory.batch import size_of
from forgetless.memory.columns import Columns

ROWS = 1024
BYTES = 2**24  # waiting saves little where batches are large


@final
class Stage:
    """Copies of the rows of some batches, each as wide as the columns of the buffer."""

    def __init__(self, columns: Columns) -> None:
        row_bytes = sum(rows[0].nbytes for rows in columns.rows.values())
        self._columns, self._room = columns, min(ROWS, BYTES // max(1, row_bytes))
        self._rows: dict[str, Tensor] = {}  # allocated for the first batch
        self._filled = 0

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more rows fit."""
        return self._filled + size <= self._room

    def add(self, batch: Mapping[str, Tensor]) -> bool:
        """Copy a batch; return False and copy nothing if it does not fit."""
        size = size_of(batch)
        if not self.has_room(size) or self._columns.too_narrow_for(batch):
            return False
        if not self._rows:
            with torch.inference_mode(False):  # its tensors cannot be written to outside of it
                for name, rows in self._columns.rows.items():
                    self._rows[name] = rows.new_empty((self._room, *rows.shape[1:]))
        end = self._filled + size
        for name, column in self._columns.fit(batch).items():
            self._rows[name][self._filled : end].copy_(column.detach())
        self._filled = end
        return True

    def rows(self) -> dict[str, Tensor]:
        """Return views of the rows that wait; empty if there are none."""
        return {name: rows[: self._filled] for name, rows in self._rows.items()} if self._filled else {}

    def release(self) -> dict[str, Tensor]:
        """Return what ``rows`` returns. The rows are then free for the next batches."""
        rows, self._filled = self.rows(), 0
        return rows
