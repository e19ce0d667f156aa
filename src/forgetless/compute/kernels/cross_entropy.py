"""Cross-entropy and its gradient in one Triton kernel, where torch takes six; labels below 0 are left out."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST = 2**14  # logits, batch and classes each rounded up to a power of 2: one program handles all


@triton.jit
def _cross_entropy(logits, labels, loss, gradient, batch, classes, BATCH: tl.constexpr, CLASSES: tl.constexpr):
    row = tl.arange(0, BATCH)[:, None]
    column = tl.arange(0, CLASSES)[None, :]
    place = row * classes + column
    inside = (row < batch) & (column < classes)
    x = tl.load(logits + place, inside, other=-float("inf"))
    x = tl.where(row < batch, x, 0.0)
    x -= tl.max(x, 1, keep_dims=True)
    exponential = tl.exp(x)
    total = tl.sum(exponential, 1, keep_dims=True)
    label = tl.load(labels + row, row < batch, other=-1)
    known = label >= 0
    count = tl.sum(known.to(tl.float32))
    own = column == label
    losses = tl.log(total) - tl.sum(tl.where(own, x, 0.0), 1, keep_dims=True)
    tl.store(loss, tl.sum(tl.where(known, losses, 0.0)) / count)
    slope = tl.where(known, exponential / total - tl.where(own, 1.0, 0.0), 0.0)
    tl.store(gradient + place, slope / count, inside)


def serves(logits: Tensor, y: Tensor) -> bool:
    """Whether they are what the kernel is for: a few scores in float32, a class each."""
    if logits.ndim != 2 or logits.dtype != torch.float32 or y.dtype != torch.int64 or y.shape != logits.shape[:1]:
        return False
    batch, classes = map(triton.next_power_of_2, logits.shape)
    return bool(0 < batch * classes <= LARGEST)


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """``F.cross_entropy(logits, y)``, and its gradient with respect to ``logits``."""
    logits, y = logits.detach().contiguous(), y.contiguous()
    batch, classes = logits.shape
    loss, gradient = logits.new_empty(()), torch.empty_like(logits)
    with torch.cuda.device_of(logits):
        _cross_entropy[(1,)](
            logits, y, loss, gradient, batch, classes, triton.next_power_of_2(batch), triton.next_power_of_2(classes)
        )
    return loss, gradient
