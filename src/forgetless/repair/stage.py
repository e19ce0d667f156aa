"""Batches that wait, so that a buffer writes a few of them in one go, with the kernel launches of one."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from forgetless.repair.batch import size_of
from forgetless.repair.columns import Columns

ROWS = 1024
BYTES = 2**24  # waiting saves little where batches are large


@final
class Stage:
    """Copies of the rows of some batches. The first batch fixes the columns, and how many rows there is room for."""

    def __init__(self, batch: Mapping[str, Tensor], device: torch.device | None, pad: int) -> None:
        row_bytes = sum(column.nbytes for column in batch.values()) // max(1, size_of(batch))
        self._room = min(ROWS, BYTES // max(1, row_bytes))
        self._columns = Columns(self._room, pad)
        self._columns.open(batch, device or torch.device("cpu"))
        self._filled = 0

    def has_room(self, size: int) -> bool:
        """Return whether ``size`` more rows fit."""
        return self._filled + size <= self._room

    def add(self, batch: Mapping[str, Tensor], size: int) -> bool:
        """Copy a batch of ``size`` rows; return False and copy nothing if there is no room."""
        if not self.has_room(size):
            return False
        end = self._filled + size
        for name, column in self._columns.fit(batch).items():
            self._columns.rows[name][self._filled : end].copy_(column.detach())
        self._filled = end
        return True

    def rows(self) -> dict[str, Tensor]:
        """Return views of the rows that wait; empty if there are none."""
        return {name: rows[: self._filled] for name, rows in self._columns.rows.items()} if self._filled else {}

    def release(self) -> dict[str, Tensor]:
        """Return what ``rows`` returns. The rows are then free for the next batches."""
        rows, self._filled = self.rows(), 0
        return rows
