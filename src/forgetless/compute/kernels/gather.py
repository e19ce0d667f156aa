"""The rows and labels of ``feed.Feed``'s next batch in one Triton kernel, for a position on the device."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 4096  # examples of a batch, which one program handles


@triton.jit
def _take(order, position, labels, rows, y, size, SIZE: tl.constexpr):
    example = tl.arange(0, SIZE)
    real = example < size
    at = tl.load(position)
    row = tl.load(order + at + example, real, other=0)
    tl.store(rows + example, row, real)
    tl.store(y + example, tl.load(labels + row, real, other=0), real)
    tl.debug_barrier()  # all have read the position
    tl.store(position, at + size)


def take(order: Tensor, position: Tensor, labels: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The next ``size`` of ``order``, and their labels; ``position`` moves on by as many."""
    rows, y = order.new_empty(size), labels.new_empty(size)
    with torch.cuda.device_of(order):
        _take[(1,)](order, position, labels, rows, y, size, triton.next_power_of_2(size))
    return rows, y
