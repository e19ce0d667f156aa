"""Load the batches of a task's training examples, in a new random order each epoch.

Images on the run's device are gathered there, inside the captured step. Images that stay on the CPU (too many for the
GPU, or a memory map) are gathered ahead by a thread into pinned memory and copied to a fixed place on the GPU. The
batches are the same.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle
from typing import Any, final

import torch
from torch import Tensor

from forgetless.compute.engine import Engine
from forgetless.data.stream import Split

SLOTS = 4  # batches gathered ahead


def batch_sizes(examples: int, batch: int, smallest: int = 1) -> list[int]:
    """Return the sizes of an epoch's batches.

    The last batch is the remainder. It is left out if it has fewer than ``smallest`` examples and is not the only one.
    """
    whole, rest = divmod(examples, batch)
    return [batch] * whole + [rest] * (rest >= smallest or not whole)


@final
class Loader:
    """Loads the batches of one task: ``shuffle`` starts an epoch; each batch is first staged, then taken."""

    def __init__(
        self, split: Split, batch: int, engine: Engine, generator: torch.Generator, *, smallest: int = 1
    ) -> None:
        self._split, self._batch, self._generator = split, batch, generator
        device = engine.device
        self._order = torch.zeros(len(split), dtype=torch.int64, device=device)
        self._end = 0  # of the staged batch in the order
        self._losses = torch.zeros(len(split) + 1, device=device)  # of this epoch, each at the end of its batch
        self.sizes = batch_sizes(len(split), batch, smallest)
        self._prefetcher = None if split.x.device == split.y.device else _Prefetcher(split, batch, device)
        self._position = torch.zeros((), dtype=torch.int64, device=device) if engine.captures else None
        self._range = torch.arange(batch, device=device)

    def shuffle(self) -> None:
        """Start an epoch with a new order."""
        self._losses.zero_()
        self._order.copy_(torch.randperm(len(self._split), generator=self._generator, device=self._order.device))
        self._begin(0)

    def _begin(self, start: int) -> None:
        """Continue the epoch after the first ``start`` examples."""
        self._end = start
        if self._position is not None:
            self._position.fill_(start)
        if self._prefetcher is not None and start < sum(self.sizes):
            self._prefetcher.begin(self._order[start : sum(self.sizes)].cpu().split(self._batch))

    def state_dict(self) -> dict[str, Any]:
        """Return the order and the losses of this epoch, and how many examples are done."""
        return {"order": self._order.clone(), "at": self._end, "losses": self._losses.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume the epoch of ``state_dict``."""
        self._order.copy_(state["order"])
        self._losses.copy_(state["losses"])
        self._begin(state["at"])

    def stage(self, size: int) -> None:
        """Do the CPU's part of loading the next batch, which is never captured."""
        self._end += size
        if self._prefetcher is not None:
            self._prefetcher.stage()

    def take(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the images and labels of the staged batch. This part can be captured."""
        if self._position is None:
            rows = self._order[self._end - size : self._end]
        else:
            rows = self._order.index_select(0, self._range[:size] + self._position)
            self._position.add_(size)
        x = self._split.x.index_select(0, rows) if self._prefetcher is None else self._prefetcher.x[:size]
        return x, self._split.y.index_select(0, rows)

    def record_loss(self, loss: Tensor) -> None:
        """Record the loss of the batch that was taken."""
        if self._position is None:
            self._losses[self._end] = loss
        else:
            self._losses.index_copy_(0, self._position.view(1), loss.float().view(1))

    def mean_loss(self) -> float:
        """Return the mean loss of this epoch's batches. Synchronises with the GPU."""
        return float(self._losses.sum()) / len(self.sizes)

    def first_bad_batch(self) -> int:
        """Return the first batch of this epoch, from 0, whose loss is not finite."""
        end = int((~self._losses.isfinite()).nonzero()[0])
        return math.ceil(end / self._batch) - 1

    def close(self) -> None:
        """Stop the thread that gathers images."""
        if self._prefetcher is not None:
            self._prefetcher.close()


@final
class _Prefetcher:
    """Gathers batches of images on the CPU ahead of time."""

    def __init__(self, split: Split, batch: int, device: torch.device) -> None:
        self._images = split.x
        empty = torch.zeros(batch, *split.x.shape[1:], dtype=split.x.dtype)
        self.x = empty.to(device)
        # Pinned memory for one batch, and the event after which its last copy to the GPU is done.
        self._slots = cycle([(empty.pin_memory(), torch.cuda.Event()) for _ in range(SLOTS)])
        self._thread = ThreadPoolExecutor(1, "loader")
        self._gathered: deque[Future[tuple[Tensor, torch.cuda.Event]]] = deque()
        self._waiting: Iterator[Tensor] = iter(())

    def begin(self, batches: Iterable[Tensor]) -> None:
        """Start to gather these batches of row numbers."""
        self._waiting = iter(batches)
        for _ in range(SLOTS):
            self._submit()

    def stage(self) -> None:
        """Copy the next batch to the GPU."""
        x, copied = self._gathered.popleft().result()
        self.x[: len(x)].copy_(x, non_blocking=True)
        copied.record()
        self._submit()

    def close(self) -> None:
        """Stop the thread."""
        self._thread.shutdown()

    def _submit(self) -> None:
        if (rows := next(self._waiting, None)) is not None:
            self._gathered.append(self._thread.submit(self._gather, *next(self._slots), rows))

    def _gather(self, pinned: Tensor, copied: torch.cuda.Event, rows: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        copied.synchronize()
        return torch.index_select(self._images, 0, rows, out=pinned[: len(rows)]), copied
