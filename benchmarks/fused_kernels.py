"""Compute convolutions and batch norm of several lanes in one launch each, in Triton, for ``fused.py``.

Images are channels-last behind the lanes: (lanes, batch, height, width, channels), and weights (lanes, outputs, kernel,
kernel, channels). A convolution is a matrix product whose rows are read through the shifts of the kernel (implicit
GEMM). The last axis of each grid is the lane. There are no atomic additions.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from forgetless.compute.kernels.batch_norm import BLOCK, CHUNKS, WARPS, _share, _statistics

PROGRAMS = 528  # four for each of the 132 multiprocessors of an H200; weight gradients split their sums to get there


class Tile(NamedTuple):
    """The part of a matrix product that one program computes, and how."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    @property
    def name(self) -> str:
        return f"{self.rows}×{self.columns}×{self.depth}"


TILES = (Tile(128, 64, 64, 4, 4), Tile(256, 64, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 256, 64, 8, 3))
WEIGHT_TILES = (Tile(64, 64, 64, 4, 4), Tile(128, 64, 64, 4, 4), Tile(128, 128, 64, 8, 3))


def tiles(columns: int) -> list[Tile]:
    """Return the tiles for products with this many columns."""
    return [tile for tile in TILES if tile.columns <= max(64, columns)]


def weight_tiles(rows: int, columns: int) -> list[Tile]:
    """Return the tiles for weight gradients with these rows (outputs) and columns (channels)."""
    return [tile for tile in WEIGHT_TILES if tile.rows <= max(64, rows) and tile.columns <= max(64, columns)]


@triton.jit(do_not_specialize=["pixels", "size", "out_size"])
def _forward(
    x, weight, y, pixels, size, out_size, channels, outputs, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write y: one row per pixel of the output, one column per output channel, summed over shifts and channels."""
    lane = tl.program_id(1).to(tl.int64)
    across = tl.cdiv(outputs, COLUMNS)
    pixel = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    image = pixel // (out_size * out_size)
    top = pixel // out_size % out_size * STRIDE - KERNEL // 2
    left = pixel % out_size * STRIDE - KERNEL // 2
    x += lane * (pixels // (out_size * out_size)) * size * size * channels
    weight += lane * outputs * KERNEL * KERNEL * channels
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    chunks = tl.cdiv(channels, DEPTH)
    for step in range(KERNEL * KERNEL * chunks):
        shift = step // chunks
        channel = step % chunks * DEPTH + tl.arange(0, DEPTH)
        row, column = top + shift // KERNEL, left + shift % KERNEL
        inside = (pixel < pixels) & (row >= 0) & (row < size) & (column >= 0) & (column < size)
        place = ((image * size + row) * size + column)[:, None] * channels + channel[None, :]
        values = tl.load(x + place, inside[:, None] & (channel < channels)[None, :], other=0.0)
        place = output[None, :] * (KERNEL * KERNEL * channels) + shift * channels + channel[:, None]
        factors = tl.load(weight + place, (output < outputs)[None, :] & (channel < channels)[:, None], other=0.0)
        total = tl.dot(values, factors, total)
    place = (lane * pixels + pixel)[:, None] * outputs + output[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), (pixel < pixels)[:, None] & (output < outputs)[None, :])


@triton.jit(do_not_specialize=["images", "size", "out_size"])
def _input_gradient(
    dy, weight, dx, images, size, out_size, channels, outputs, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write dx: one row per pixel of the input, one column per channel, summed over shifts and outputs.

    With stride 2, a pixel of an even row has other shifts than one of an odd row, and likewise for columns. A program
    has pixels of one kind, so it multiplies no zeros. The second axis of the grid is that kind.
    """
    lane = tl.program_id(2).to(tl.int64)
    across = tl.cdiv(channels, COLUMNS)
    pixel = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    odd_row, odd_column = tl.program_id(1) // STRIDE, tl.program_id(1) % STRIDE
    side = tl.cdiv(size, STRIDE)
    image = pixel // (side * side)
    row, column = pixel // side % side * STRIDE + odd_row, pixel % side * STRIDE + odd_column
    real = (image < images) & (row < size) & (column < size)
    first_down, first_right = (odd_row + KERNEL // 2) % STRIDE, (odd_column + KERNEL // 2) % STRIDE
    down, right = tl.cdiv(KERNEL - first_down, STRIDE), tl.cdiv(KERNEL - first_right, STRIDE)  # numbers of shifts
    dy += lane * images * out_size * out_size * outputs
    weight += lane * outputs * KERNEL * KERNEL * channels
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    chunks = tl.cdiv(outputs, DEPTH)
    for step in range(down * right * chunks):
        shift = step // chunks
        output = step % chunks * DEPTH + tl.arange(0, DEPTH)
        shift_down, shift_right = first_down + shift // right * STRIDE, first_right + shift % right * STRIDE
        above, beside = row + KERNEL // 2 - shift_down, column + KERNEL // 2 - shift_right  # multiples of the stride
        from_row, from_column = above // STRIDE, beside // STRIDE
        inside = real & (above >= 0) & (from_row < out_size) & (beside >= 0) & (from_column < out_size)
        place = ((image * out_size + from_row) * out_size + from_column)[:, None] * outputs + output[None, :]
        values = tl.load(dy + place, inside[:, None] & (output < outputs)[None, :], other=0.0)
        place = (output[:, None] * (KERNEL * KERNEL) + shift_down * KERNEL + shift_right) * channels + channel[None, :]
        factors = tl.load(weight + place, (output < outputs)[:, None] & (channel < channels)[None, :], other=0.0)
        total = tl.dot(values, factors, total)
    place = (((lane * images + image) * size + row) * size + column)[:, None] * channels + channel[None, :]
    tl.store(dx + place, total.to(dx.dtype.element_ty), real[:, None] & (channel < channels)[None, :])


@triton.jit(do_not_specialize=["pixels", "size", "lanes", "share"])
def _weight_gradient(
    x, dy, parts, pixels, size, lanes, share, channels, outputs, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    OUT_SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Write a part of dw: a row per output channel, a column per channel, one shift, summed over a share of pixels."""
    lane = tl.program_id(2).to(tl.int64)
    across = tl.cdiv(channels, COLUMNS)
    shift = tl.program_id(0) // across % (KERNEL * KERNEL)
    output = tl.program_id(0) // across // (KERNEL * KERNEL) * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    x += lane * (pixels // (OUT_SIZE * OUT_SIZE)) * size * size * channels
    dy += lane * pixels * outputs
    begin = tl.program_id(1) * share
    end = tl.minimum(begin + share, pixels)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(begin, end, DEPTH):
        pixel = start + tl.arange(0, DEPTH)
        row = pixel // OUT_SIZE % OUT_SIZE * STRIDE + shift // KERNEL - KERNEL // 2
        column = pixel % OUT_SIZE * STRIDE + shift % KERNEL - KERNEL // 2
        place = pixel[:, None] * outputs + output[None, :]
        factors = tl.load(dy + place, (pixel < end)[:, None] & (output < outputs)[None, :], other=0.0)
        inside = (pixel < end) & (row >= 0) & (row < size) & (column >= 0) & (column < size)
        place = (pixel // (OUT_SIZE * OUT_SIZE) * size + row) * size + column
        place = place[:, None] * channels + channel[None, :]
        values = tl.load(x + place, inside[:, None] & (channel < channels)[None, :], other=0.0)
        total = tl.dot(tl.trans(factors), values, total)
    place = ((tl.program_id(1) * lanes + lane) * outputs + output)[:, None] * (KERNEL * KERNEL) + shift
    place = place * channels + channel[None, :]
    tl.store(parts + place, total, (output < outputs)[:, None] & (channel < channels)[None, :])


def _depth(tile: Tile, terms: int) -> int:
    """Return the depth of a tile for sums over this many channels; ``tl.dot`` needs at least 16."""
    return min(tile.depth, max(16, int(triton.next_power_of_2(terms))))


def convolve(x: Tensor, weight: Tensor, stride: int, tile: Tile) -> Tensor:
    """Return the convolution of each lane's images with its weights, padded so that stride 1 keeps the size."""
    lanes, batch, size, _, channels = x.shape
    outputs, kernel = weight.shape[1:3]
    out_size = (size - 1) // stride + 1
    y = torch.empty((lanes, batch, out_size, out_size, outputs), dtype=x.dtype, device=x.device)
    pixels = batch * out_size * out_size
    _forward[(triton.cdiv(pixels, tile.rows) * triton.cdiv(outputs, tile.columns), lanes)](
        x, weight, y, pixels, size, out_size, channels, outputs, kernel, stride,
        tile.rows, tile.columns, _depth(tile, channels), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def convolve_input_gradient(dy: Tensor, weight: Tensor, size: int, stride: int, tile: Tile) -> Tensor:
    """Return the gradient of images of this size."""
    lanes, batch, out_size, _, outputs = dy.shape
    kernel, _, channels = weight.shape[2:]
    dx = torch.empty((lanes, batch, size, size, channels), dtype=dy.dtype, device=dy.device)
    pixels = batch * triton.cdiv(size, stride) ** 2
    grid = (triton.cdiv(pixels, tile.rows) * triton.cdiv(channels, tile.columns), stride * stride, lanes)
    _input_gradient[grid](
        dy, weight, dx, batch, size, out_size, channels, outputs, kernel, stride,
        tile.rows, tile.columns, _depth(tile, outputs), num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dx


def convolve_weight_gradient(x: Tensor, dy: Tensor, kernel: int, stride: int, tile: Tile) -> Tensor:
    """Return the gradient of the weights in fp32, which the update needs."""
    lanes, batch, size, _, channels = x.shape
    out_size, _, outputs = dy.shape[2:]
    pixels = batch * out_size * out_size
    programs = triton.cdiv(outputs, tile.rows) * triton.cdiv(channels, tile.columns) * kernel * kernel
    splits = min(triton.cdiv(PROGRAMS, programs * lanes), triton.cdiv(pixels, 4 * tile.depth))
    share = triton.cdiv(triton.cdiv(pixels, splits), tile.depth) * tile.depth
    splits = triton.cdiv(pixels, share)
    parts = torch.empty((splits, lanes, outputs, kernel, kernel, channels), dtype=torch.float32, device=x.device)
    _weight_gradient[(programs, splits, lanes)](
        x, dy, parts, pixels, size, lanes, share, channels, outputs, kernel, stride, out_size,
        tile.rows, tile.columns, tile.depth, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return parts[0] if splits == 1 else parts.sum(0)


@triton.jit
def _merged(means, squares, lane, column, rows, channels, chunks, chunk, CHUNKS: tl.constexpr):
    """Return the mean and variance of a lane."""
    part = tl.arange(0, CHUNKS)
    inside = (part < chunks)[:, None] & (column < channels)[None, :]
    place = (lane * chunks + part)[:, None] * channels + column[None, :]
    count = tl.minimum(rows - part * chunk, chunk).to(tl.float32)
    count = tl.where(part < chunks, count, 0.0)[:, None]
    middle = tl.load(means + place, inside, other=0.0)
    mean = tl.sum(middle * count, 0) / rows
    apart = middle - mean[None, :]
    return mean, tl.sum(tl.load(squares + place, inside, other=0.0) + apart * apart * count, 0) / rows


@triton.jit(do_not_specialize=["chunks", "chunk"])
def _normalise(
    x, residual, weight, bias, y, means, squares, mean_of, rate_of, running_mean, running_var,
    rows, channels, chunks, chunk, momentum, epsilon,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, CHUNKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the output and the statistics of a chunk of rows of one lane."""
    part, lane, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    own = lane * channels + column  # places of the lane's channels
    mean, variance = _merged(means, squares, lane, column, rows, channels, chunks, chunk, CHUNKS)
    rate = 1.0 / tl.sqrt(variance + epsilon)
    if part % chunks == 0:
        tl.store(mean_of + own, mean, real)
        tl.store(rate_of + own, rate, real)
        average, spread = tl.load(running_mean + own, real), tl.load(running_var + own, real)
        unbiased = variance * (rows / tl.maximum(rows - 1.0, 1.0))
        tl.store(running_mean + own, average + momentum * (mean - average), real)
        tl.store(running_var + own, spread + momentum * (unbiased - spread), real)
    scale = tl.load(weight + own, real, other=0.0) * rate
    shift = tl.load(bias + own, real, other=0.0) - mean * scale
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        value = tl.load(x + place, inside, other=0.0).to(tl.float32) * scale[None, :] + shift[None, :]
        if RESIDUAL:
            value += tl.load(residual + place, inside, other=0.0).to(tl.float32)
        if RELU:
            value = tl.where(value < 0, 0.0, value)
        tl.store(y + place, value.to(y.dtype.element_ty), inside)


@triton.jit
def _behind_relu(
    dy, x, y, place, inside, mean, scale, shift, RELU: tl.constexpr, RESIDUAL: tl.constexpr
):  # fmt: skip
    """Return the gradient behind the ReLU, and x minus its mean."""
    g = tl.load(dy + place, inside, other=0.0).to(tl.float32)
    value = tl.load(x + place, inside, other=0.0).to(tl.float32)
    if RELU:
        if RESIDUAL:
            g = tl.where(tl.load(y + place, inside, other=0.0) > 0, g, 0.0)
        else:
            g = tl.where(value * scale[None, :] + shift[None, :] > 0, g, 0.0)
    return g, value - mean[None, :]


@triton.jit(do_not_specialize=["chunks", "chunk"])
def _sums(
    dy, x, y, weight, bias, mean_of, rate_of, plain, weighted, rows, channels, chunks, chunk,
    RELU: tl.constexpr, RESIDUAL: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum g and g · x̂ over a chunk of rows of one lane, where g is the gradient behind the ReLU."""
    part, lane, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    own = lane * channels + column
    mean, rate = tl.load(mean_of + own, real, other=0.0), tl.load(rate_of + own, real, other=0.0)
    scale = tl.load(weight + own, real, other=0.0) * rate
    shift = tl.load(bias + own, real, other=0.0) - mean * scale
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        g, apart = _behind_relu(dy, x, y, place, inside, mean, scale, shift, RELU, RESIDUAL)
        first += tl.sum(g, 0)
        second += tl.sum(g * apart, 0)
    tl.store(plain + part * channels + column, first, real)
    tl.store(weighted + part * channels + column, second * rate, real)


@triton.jit(do_not_specialize=["chunks", "chunk"])
def _gradients(
    dy, x, y, weight, bias, mean_of, rate_of, plain, weighted, dx, dresidual, dweight, dbias,
    rows, channels, chunks, chunk, RELU: tl.constexpr, RESIDUAL: tl.constexpr,
    CHUNKS: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the gradients of x, of the residual, of the weight and of the bias for a chunk of rows of one lane."""
    part, lane, start, end, column, real = _share(rows, channels, chunks, chunk, BLOCK)
    own = lane * channels + column
    parts = tl.arange(0, CHUNKS)
    sums = (lane * chunks + parts)[:, None] * channels + column[None, :]
    summed = (parts < chunks)[:, None] & real[None, :]
    first = tl.sum(tl.load(plain + sums, summed, other=0.0), 0)
    second = tl.sum(tl.load(weighted + sums, summed, other=0.0), 0)
    if part % chunks == 0:
        tl.store(dbias + own, first, real)
        tl.store(dweight + own, second, real)
    mean, rate = tl.load(mean_of + own, real, other=0.0), tl.load(rate_of + own, real, other=0.0)
    scale = tl.load(weight + own, real, other=0.0) * rate
    shift = tl.load(bias + own, real, other=0.0) - mean * scale
    first = first / rows
    second = second / rows * rate
    for at in range(start, end, TILE):
        row = at + tl.arange(0, TILE)
        inside = (row < end)[:, None] & real[None, :]
        place = row[:, None] * channels + column[None, :]
        g, apart = _behind_relu(dy, x, y, place, inside, mean, scale, shift, RELU, RESIDUAL)
        if RESIDUAL:
            tl.store(dresidual + place, g.to(dresidual.dtype.element_ty), inside)
        gradient = scale[None, :] * (g - first[None, :] - apart * second[None, :])
        tl.store(dx + place, gradient.to(dx.dtype.element_ty), inside)


def normalise_and_back(
    x: Tensor, residual: Tensor | None, dy: Tensor, weight: Tensor, bias: Tensor, running: tuple[Tensor, Tensor],
    *, relu: bool, momentum: float, epsilon: float, programs: int, tile: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute batch norm, the residual and the ReLU of all lanes, forward and backward.

    Images are (lanes, batch, height, width, channels); weights, biases and running statistics are (lanes, channels).
    ``programs`` share the work of a launch, each in steps of ``tile`` rows.

    Returns:
        The output and the gradients of x, of the weight, of the bias and, if there is one, of the residual.
    """
    lanes, channels = len(x), x.shape[-1]
    rows = x[0].numel() // channels
    blocks = triton.cdiv(channels, BLOCK)
    chunk = triton.cdiv(triton.cdiv(rows, max(1, min(CHUNKS, programs // (lanes * blocks)))), 64) * 64
    chunks = triton.cdiv(rows, chunk)
    grid, layout = (lanes * chunks, blocks), (rows, channels, chunks, chunk)
    means, squares, plain, weighted = torch.empty((4, lanes * chunks, channels), dtype=torch.float32, device=x.device)
    mean, rate, dweight, dbias = torch.empty((4, lanes, channels), dtype=torch.float32, device=x.device)
    y, dx = torch.empty_like(x), torch.empty_like(x)
    add = residual is not None
    dresidual = torch.empty_like(x) if add else dx
    _statistics[grid](x, means, squares, *layout, tile, BLOCK, num_warps=WARPS)
    _normalise[grid](
        x, residual if add else x, weight, bias, y, means, squares, mean, rate, *running, *layout, momentum, epsilon,
        relu, add, CHUNKS, tile, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    _sums[grid](
        dy, x, y, weight, bias, mean, rate, plain, weighted, *layout, relu, add, tile, BLOCK, num_warps=WARPS
    )  # fmt: skip
    _gradients[grid](
        dy, x, y, weight, bias, mean, rate, plain, weighted, dx, dresidual, dweight, dbias, *layout,
        relu, add, CHUNKS, tile, BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return (y, dx, dweight, dbias, dresidual) if add else (y, dx, dweight, dbias)
