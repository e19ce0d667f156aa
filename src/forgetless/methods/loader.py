"""The batches of a task's training examples, in an order drawn anew each epoch.

Images on the run's device are gathered there, inside what is captured. Images that stay on the host (too many for the
device, or a memory map) are gathered by a thread that works ahead, into pinned memory, and copied to a place on the
device that stays the same; the batches are the same ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forgetless.compute import kernels
from forgetless.compute.engine import Engine
from forgetless.data.stream import Split

SLOTS = 4  # batches gathered ahead


def batch_sizes(examples: int, batch: int, least: int = 1) -> list[int]:
    """Of the batches of an epoch: the last is what remains, and left out if that is fewer than ``least``."""
    whole, rest = divmod(examples, batch)
    return [batch] * whole + [rest] * (rest >= least or not whole)


class Feed:
    """Batches of ``split``: ``shuffle`` begins an epoch; for each size it gives, ``stage``, then ``take``."""

    def __init__(self, split: Split, batch: int, engine: Engine, generator: torch.Generator, *, least: int = 1) -> None:
        self._split, self._batch, self._generator = split, batch, generator
        device = engine.device
        self._order = torch.zeros(len(split), dtype=torch.int64, device=device)
        self._at = 0
        self._losses = torch.zeros(len(split) + 1, device=device)  # of this epoch, each where its batch ends
        self.sizes = batch_sizes(len(split), batch, least)
        self._end = sum(self.sizes)
        self._host = None if split.x.device == split.y.device else _Host(split, batch, device)
        self._position = torch.zeros((), dtype=torch.int64, device=device) if engine.captures else None
        self._range = torch.arange(batch, device=device)

    def shuffle(self) -> list[int]:
        """Begin an epoch; gives the sizes of its batches."""
        self._losses.zero_()
        self._order.copy_(torch.randperm(len(self._split), generator=self._generator, device=self._order.device))
        self._begin(0)
        return self.sizes

    def _begin(self, at: int) -> None:
        self._at = at
        if self._position is not None:
            self._position.fill_(at)
        if self._host is not None and at < self._end:
            self._host.begin(self._order[at : self._end].cpu().split(self._batch))

    def state_dict(self) -> dict[str, Any]:
        """The order of this epoch, and how much of it is done."""
        return {"order": self._order.clone(), "at": self._at, "losses": self._losses.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._order.copy_(state["order"])
        self._losses.copy_(state["losses"])
        self._begin(state["at"])

    def stage(self, size: int) -> None:
        """The host's part of the next batch; not captured."""
        self._at += size
        if self._host is not None:
            self._host.stage()

    def take(self, size: int) -> tuple[Tensor, Tensor]:
        """The images and labels of the batch staged; reads only what stays in its place."""
        rows, y = self._rows(size)
        return self._split.x.index_select(0, rows) if self._host is None else self._host.x[:size], y

    def _rows(self, size: int) -> tuple[Tensor, Tensor]:
        """Which examples these are, and their labels."""
        labels = self._split.y
        if self._position is None:
            rows = self._order[self._at - size : self._at]
            return rows, labels.index_select(0, rows)
        if kernels.serve(labels) and labels.ndim == 1 and labels.is_contiguous():
            from forgetless.compute.kernels import gather as feed_cuda

            if size <= feed_cuda.LARGEST:
                return feed_cuda.take(self._order, self._position, labels, size)
        rows = self._order.index_select(0, self._range[:size] + self._position)
        self._position.add_(size)
        return rows, labels.index_select(0, rows)

    def note(self, loss: Tensor) -> None:
        """Write down the loss of the batch that was taken."""
        if self._position is None:
            self._losses[self._at] = loss
        else:
            self._losses.index_copy_(0, self._position.view(1), loss.float().view(1))

    def mean_loss(self) -> float:
        """Of the batches of this epoch. The host waits here."""
        return float(self._losses.sum()) / len(self.sizes)

    def first_bad(self) -> int:
        """The batch of this epoch, from 0, whose loss was the first that is not finite."""
        end = int((~self._losses.isfinite()).nonzero()[0])
        return math.ceil(end / self._batch) - 1

    def close(self) -> None:
        if self._host is not None:
            self._host.close()


@dataclass(frozen=True)
class _Slot:
    """Pinned memory for one batch, and the mark after which its last copy to the device is done."""

    x: Tensor
    copied: torch.cuda.Event


class _Host:
    """Gathers batches from images on the host, a few ahead."""

    def __init__(self, split: Split, batch: int, device: torch.device) -> None:
        self._images = split.x
        shape = (batch, *split.x.shape[1:])
        self.x = torch.zeros(shape, dtype=split.x.dtype, device=device)
        self._slots = [
            _Slot(torch.zeros(shape, dtype=split.x.dtype, pin_memory=True), torch.cuda.Event()) for _ in range(SLOTS)
        ]
        self._thread = ThreadPoolExecutor(1, "feed")
        self._ahead: deque[Future[tuple[_Slot, int]]] = deque()
        self._left: deque[Tensor] = deque()
        self._next = 0

    def begin(self, batches: tuple[Tensor, ...]) -> None:
        self._left.extend(batches)
        while len(self._ahead) < SLOTS and self._left:
            self._submit()

    def stage(self) -> None:
        slot, size = self._ahead.popleft().result()
        self.x[:size].copy_(slot.x[:size], non_blocking=True)
        slot.copied.record()
        if self._left:
            self._submit()

    def close(self) -> None:
        self._thread.shutdown()

    def _submit(self) -> None:
        slot = self._slots[self._next % SLOTS]
        self._next += 1
        self._ahead.append(self._thread.submit(self._gather, slot, self._left.popleft()))

    def _gather(self, slot: _Slot, rows: Tensor) -> tuple[_Slot, int]:
        slot.copied.synchronize()
        torch.index_select(self._images, 0, rows, out=slot.x[: len(rows)])
        return slot, len(rows)
