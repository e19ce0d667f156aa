"""The rows of a buffer: named columns of one dtype each, in which sequences of tokens may grow longer."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from forgetless.memory.ragged import LENGTHS, fill_value, ragged, widened

HINTS = {  # by type
    "ndarray": "; torch.from_numpy makes one",
    "list": "; give a tensor, or several as a mapping, {name: tensor}",
    "tuple": "; give a tensor, or several as a mapping, {name: tensor}",
}


@final
class Columns:
    """Columns of ``count`` rows each.

    Args:
        count: The number of rows.
        pad: The token with which ``input_ids`` are padded.
    """

    def __init__(self, count: int, pad: int = 0) -> None:
        self._count, self._pad = count, pad
        self.rows: dict[str, Tensor] = {}  # empty until the first batch; each (count, …)
        self._ragged: tuple[str, ...] = ()  # those whose rows may grow longer
        self._last: dict[str, tuple[torch.Size, torch.dtype]] = {}  # the layout of the last batch that was checked

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that batches have; the lengths of sequences are kept besides."""
        return tuple(name for name in self.rows if name != LENGTHS)

    def open(self, batch: Mapping[str, Tensor], device: torch.device) -> None:
        """Allocate the columns of this first batch."""
        self._ragged = ragged(batch) if LENGTHS in batch else ()
        with torch.inference_mode(False):  # its tensors cannot be written to outside of it
            for name, column in batch.items():
                fill = fill_value(name, self._pad) if name in self._ragged else 0
                self.rows[name] = column.new_full((self._count, *column.shape[1:]), fill, device=device)

    def padded(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor] | None:
        """Return ``batch`` as wide as the columns; None if it has longer sequences than all before."""
        if not self._ragged:
            return batch
        widths = {name: self.rows[name].shape[1] for name in self._ragged}
        too_wide = any(batch[name].shape[1] > width for name, width in widths.items())
        return None if too_wide else widened(batch, widths, self._pad)

    def fit(self, batch: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return ``batch`` as wide as the columns, which grow if it has longer sequences."""
        if not self._ragged:
            return batch
        widths = {name: max(batch[name].shape[1], self.rows[name].shape[1]) for name in self._ragged}
        with torch.inference_mode(False), torch.no_grad():
            self.rows.update(widened(self.rows, widths, self._pad))
        return widened(batch, widths, self._pad)

    def check(self, batch: Mapping[str, Tensor]) -> None:
        """Raise an error if ``batch`` does not fit what is stored; change nothing."""
        if self.fits(batch):
            return
        for name, column in batch.items():
            if not isinstance(column, Tensor) or not column.ndim or column.layout != torch.strided:
                kind = f"{column.layout} tensor" if isinstance(column, Tensor) else type(column).__name__
                hint = HINTS.get(kind, "")
                raise TypeError(f"column {name!r} is a {kind}; it must be a dense tensor, one row per example{hint}")
        sizes = {name: len(column) for name, column in batch.items()}
        if len(set(sizes.values())) != 1:
            raise ValueError(f"columns differ in length: {sizes}")
        if not self.rows:
            return
        if {*batch, LENGTHS} != {*self.rows, LENGTHS}:
            held, given = ", ".join(self.names), ", ".join(name for name in batch if name != LENGTHS)
            raise ValueError(f"the buffer holds the columns {held}; this batch has {given}")
        for name in self.names:
            column, rows = batch[name], self.rows[name]
            if column.shape[1:] != rows.shape[1:] and not (name in self._ragged and column.ndim == 2):
                shape, held_shape = tuple(column.shape[1:]), tuple(rows.shape[1:])
                raise ValueError(f"column {name!r} has examples of shape {shape}; the buffer holds shape {held_shape}")
            if column.dtype != rows.dtype:
                raise ValueError(f"column {name!r} has dtype {column.dtype}; the buffer holds {rows.dtype}")
        self._last = {name: (column.shape, column.dtype) for name, column in batch.items()}

    def fits(self, batch: Mapping[str, Tensor]) -> bool:
        """Return whether ``batch`` has the layout of the last one that ``check`` accepted. A padded batch does not."""
        for name, column in batch.items():
            if type(column) is not Tensor or (column.shape, column.dtype) != self._last.get(name):
                return False
        return len(batch) == len(self._last)
