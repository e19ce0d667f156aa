"""``augment.Preparation.augmented`` in one Triton kernel: crop, flip, scaling and normalisation of a batch of bytes."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256  # pixels of a program


@triton.jit
def _augment(
    x, y, offset, turn, mean, std, batch, height, width, channels,
    PAD: tl.constexpr, MIRROR: tl.constexpr, FLIP: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = pixel < height * width
    row = pixel // width
    column = pixel % width
    if FLIP:
        column = tl.where(tl.load(turn + image) < 0.5, width - 1 - column, column)
    if PAD:
        row += tl.load(offset + image).to(tl.int32) - PAD
        column += tl.load(offset + batch + image).to(tl.int32) - PAD
        if MIRROR:
            row = height - 1 - tl.abs(height - 1 - tl.abs(row))
            column = width - 1 - tl.abs(width - 1 - tl.abs(column))
    inside = real & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    for channel in range(channels):
        place = (image * channels + channel) * height * width + row * width + column
        value = tl.load(x + place, inside, other=0).to(tl.float32) / 255
        if SCALE:
            value = (value - tl.load(mean + channel)) / tl.load(std + channel)
        tl.store(y + (image * height * width + pixel) * channels + channel, value, real)


def augment(
    x: Tensor,
    offset: Tensor | None,
    turn: Tensor | None,
    mean: Tensor | None,
    std: Tensor | None,
    pad: int,
    *,
    mirror: bool = False,
) -> Tensor:
    """Bytes (batch, channels, height, width) to floats, channels-last; ``offset`` (2, batch, 1), ``turn`` (batch,)."""
    x = x.contiguous()
    batch, channels, height, width = x.shape
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device, memory_format=torch.channels_last)
    grid = (batch, triton.cdiv(height * width, BLOCK))
    with torch.cuda.device_of(x):
        _augment[grid](
            x, y, x if offset is None else offset, x if turn is None else turn, x if mean is None else mean,
            x if std is None else std, batch, height, width, channels, pad if offset is not None else 0,
            mirror, turn is not None, mean is not None, BLOCK,
        )  # fmt: skip
    return y
