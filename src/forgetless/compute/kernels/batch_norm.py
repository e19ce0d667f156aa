"""Batch norm with addition and ReLU in Triton, for ``networks/norm.py``.

Images are channels-last: a matrix with one row per pixel. Forward, one kernel computes the mean and the squared
deviation of chunks of rows; a second merges them (Chan et al. 1979) and writes the output. Backward, one kernel sums
over chunks and a second writes the gradients. Memory traffic dominates, so the mask of the ReLU is computed again from
x; with a residual it is read from y and stored in the residual's gradient. There are no atomic additions, so the same
input returns the same bits.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

BLOCK = 32  # channels per program
TILE, BACKWARD_TILE, WARPS = 256, 128, 4  # rows per iteration; of twelve choices the fastest in eight lanes
CHUNKS = 64  # the most partial sums per pass and channel
PROGRAMS = 128  # per launch: with 256 one run alone is faster, but eight lanes are slower


@triton.jit
def _share(rows, channels, chunks, chunk, BLOCK: tl.constexpr):
    """Return a program's chunk, its pass, its first row and the row after its last, its columns, and which exist."""
    part = tl.program_id(0)
    turn = part // chunks
    start = turn * rows + (part % chunks) * chunk
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return part, turn, start, tl.minimum(start + chunk, (turn + 1) * rows), column, column < channels


@triton.jit(do_not_specialize=["chunks", "chunk"])
def _statistics(
    x, means, squares, rows, channels, chunks, chunk, TILE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Compute the mean and squared deviation of a chunk of rows, from sums around its first row for accuracy."""
    part, _, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    first = tl.load(x + start * channels + column, real, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    square = tl.zeros((BLOCK,), tl.float32)
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        values = tl.load(x + row[:, None] * channels + column[None, :], inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, values - first[None, :], 0.0)
        total += tl.sum(apart, 0)
        square += tl.sum(apart * apart, 0)
    count = (end - start).to(tl.float32)
    tl.store(means + part * channels + column, first + total / count, real)
    tl.store(squares + part * channels + column, square - total * total / count, real)


@triton.jit
def _merged(means, squares, turn, column, rows, channels, chunks, chunk, CHUNKS: tl.constexpr):
    """Return the mean and variance of one pass."""
    part = tl.arange(0, CHUNKS)
    inside = (part < chunks)[:, None] & (column < channels)[None, :]
    at = (turn * chunks + part)[:, None] * channels + column[None, :]
    count = tl.minimum(rows - part * chunk, chunk).to(tl.float32)
    count = tl.where(part < chunks, count, 0.0)[:, None]
    middle = tl.load(means + at, inside, other=0.0)
    mean = tl.sum(middle * count, 0) / rows
    apart = middle - mean[None, :]
    variance = tl.sum(tl.load(squares + at, inside, other=0.0) + apart * apart * count, 0) / rows
    return mean, variance


@triton.jit(do_not_specialize=["chunks", "chunk", "passes"])
def _apply(
    x, residual, weight, bias, y, means, squares, mean_of, rate_of, running_mean, running_var,
    rows, channels, chunks, chunk, passes, momentum, epsilon,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the output, the statistics of each pass and the running statistics."""
    part, turn, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    mean, variance = _merged(means, squares, turn, column, rows, channels, chunks, chunk, CHUNKS)
    rate = 1.0 / tl.sqrt(variance + epsilon)
    if part % chunks == 0:
        tl.store(mean_of + turn * channels + column, mean, real)
        tl.store(rate_of + turn * channels + column, rate, real)
    if part == 0:
        average = tl.load(running_mean + column, real)
        spread = tl.load(running_var + column, real)
        for other in range(passes):
            m, v = _merged(means, squares, other, column, rows, channels, chunks, chunk, CHUNKS)
            average += momentum * (m - average)
            spread += momentum * (v * (rows / tl.maximum(rows - 1.0, 1.0)) - spread)
        tl.store(running_mean + column, average, real)
        tl.store(running_var + column, spread, real)
    scale = tl.load(weight + column, real, other=0.0) * rate
    shift = tl.load(bias + column, real, other=0.0) - mean * scale
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(x + place, inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if RESIDUAL:
            value += tl.load(residual + place, inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)  # NaN stays NaN
        tl.store(y + place, value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["chunks", "chunk"])
def _sums(
    dy, x, y, weight, bias, mean_of, rate_of, plain, weighted, dresidual, rows, channels, chunks, chunk,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum g and g · x̂ over a chunk of rows, where g is the gradient behind the ReLU and of the residual."""
    part, turn, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    mean = tl.load(mean_of + turn * channels + column, real, other=0.0)
    rate = tl.load(rate_of + turn * channels + column, real, other=0.0)
    if RELU and not RESIDUAL:
        scale = tl.load(weight + column, real, other=0.0) * rate
        shift = tl.load(bias + column, real, other=0.0) - mean * scale
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        g = tl.load(dy + place, inside, other=0.0).to(tl.float32)
        value = tl.load(x + place, inside, other=0.0).to(tl.float32)
        if RELU:
            if RESIDUAL:
                g = tl.where(tl.load(y + place, inside, other=0.0) > 0, g, 0.0)
                tl.store(dresidual + place, g.to(dresidual.dtype.element_ty), inside)
            else:
                g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
        first += tl.sum(g, 0)
        second += tl.sum(g * (value - mean[None, :]), 0)
    tl.store(plain + part * channels + column, first, real)
    tl.store(weighted + part * channels + column, second * rate, real)


@triton.jit
def _totals(plain, weighted, turn, column, channels, chunks, CHUNKS: tl.constexpr):
    """Return both sums of one pass."""
    part = tl.arange(0, CHUNKS)
    inside = (part < chunks)[:, None] & (column < channels)[None, :]
    at = (turn * chunks + part)[:, None] * channels + column[None, :]
    return tl.sum(tl.load(plain + at, inside, other=0.0), 0), tl.sum(tl.load(weighted + at, inside, other=0.0), 0)


@triton.jit(do_not_specialize=["chunks", "chunk", "passes"])
def _gradients(
    through, x, weight, bias, mean_of, rate_of, plain, weighted, dx, dweight, dbias,
    rows, channels, chunks, chunk, passes,
    MASKED: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x, of the weight and of the bias."""
    part, turn, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    if part == 0:
        of_bias = tl.zeros((BLOCK,), tl.float32)
        of_weight = tl.zeros((BLOCK,), tl.float32)
        for other in range(passes):
            a, b = _totals(plain, weighted, other, column, channels, chunks, CHUNKS)
            of_bias += a
            of_weight += b
        tl.store(dbias + column, of_bias, real)
        tl.store(dweight + column, of_weight, real)
    first, second = _totals(plain, weighted, turn, column, channels, chunks, CHUNKS)
    mean = tl.load(mean_of + turn * channels + column, real, other=0.0)
    rate = tl.load(rate_of + turn * channels + column, real, other=0.0)
    scale = tl.load(weight + column, real, other=0.0) * rate
    if MASKED:
        shift = tl.load(bias + column, real, other=0.0) - mean * scale
    first = first / rows
    second = second / rows * rate
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        g = tl.load(through + place, inside, other=0.0).to(tl.float32)
        value = tl.load(x + place, inside, other=0.0).to(tl.float32)
        if MASKED:
            g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
        found = scale[None, :] * (g - first[None, :] - (value - mean[None, :]) * second[None, :])
        tl.store(dx + place, found.to(dx.dtype.element_ty), inside)


class _Layout:
    """How programs share the rows of images (batch, channels, height, width)."""

    def __init__(self, x: Tensor, passes: int) -> None:
        batch, self.channels, height, width = x.shape
        self.passes = passes
        self.rows = batch // passes * height * width  # per pass
        self.columns = triton.cdiv(self.channels, BLOCK)
        wanted = max(1, min(CHUNKS, PROGRAMS // (passes * self.columns)))
        rows = triton.cdiv(self.rows, wanted)
        self.chunk = triton.cdiv(rows, 64) * 64
        self.chunks = triton.cdiv(self.rows, self.chunk)

    @property
    def grid(self) -> tuple[int, int]:
        return (self.passes * self.chunks, self.columns)

    def partial(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory for two sums of each chunk."""
        both = torch.empty((2, self.passes * self.chunks, self.channels), dtype=torch.float32, device=x.device)
        return both[0], both[1]


class _BatchNorm(torch.autograd.Function):
    """Launches the kernels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, bn: nn.BatchNorm2d,
                relu: bool, passes: int) -> Tensor:  # fmt: skip
        layout = _Layout(x, passes)
        means, squares = layout.partial(x)
        y = torch.empty_like(x)
        saved = torch.empty((2, passes, layout.channels), dtype=torch.float32, device=x.device)
        _statistics[layout.grid](
            x, means, squares, layout.rows, layout.channels, layout.chunks, layout.chunk, TILE, BLOCK,
            num_warps=WARPS,
        )  # fmt: skip
        _apply[layout.grid](
            x, x if residual is None else residual, weight, bias, y, means, squares, saved[0], saved[1],
            bn.running_mean, bn.running_var, layout.rows, layout.channels, layout.chunks, layout.chunk, passes,
            bn.momentum, bn.eps, relu, residual is not None, CHUNKS, TILE, BLOCK, num_warps=WARPS,
        )  # fmt: skip
        ctx.save_for_backward(x, y if relu and residual is not None else x, weight, bias, saved)
        ctx.relu, ctx.residual, ctx.passes = relu, residual is not None, passes
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, y, weight, bias, saved = ctx.saved_tensors
        layout = _Layout(x, ctx.passes)
        dy = dy.to(x.dtype).contiguous(memory_format=torch.channels_last)
        plain, weighted = layout.partial(x)
        dx = torch.empty_like(x)
        dresidual = torch.empty_like(x) if ctx.relu and ctx.residual else dy
        dweight, dbias = torch.empty((2, layout.channels), dtype=torch.float32, device=x.device)
        _sums[layout.grid](
            dy, x, y, weight, bias, saved[0], saved[1], plain, weighted, dresidual,
            layout.rows, layout.channels, layout.chunks, layout.chunk,
            ctx.relu, ctx.residual, BACKWARD_TILE, BLOCK, num_warps=WARPS,
        )  # fmt: skip
        _gradients[layout.grid](
            dresidual, x, weight, bias, saved[0], saved[1], plain, weighted, dx, dweight, dbias,
            layout.rows, layout.channels, layout.chunks, layout.chunk, ctx.passes, ctx.relu and not ctx.residual,
            CHUNKS, BACKWARD_TILE, BLOCK, num_warps=WARPS,
        )  # fmt: skip
        return dx, dweight, dbias, dresidual if ctx.residual else None, None, None, None


def batch_norm(bn: nn.BatchNorm2d, x: Tensor, *, relu: bool, residual: Tensor | None, passes: int) -> Tensor:
    """Return the normalised images; the arguments are those of ``networks.norm.batch_norm``."""
    x = x.contiguous(memory_format=torch.channels_last)
    if residual is not None:
        residual = residual.to(x.dtype).contiguous(memory_format=torch.channels_last)
    with torch.cuda.device_of(x):
        y: Tensor = _BatchNorm.apply(x, bn.weight, bn.bias, residual, bn, relu, passes)
    return y
