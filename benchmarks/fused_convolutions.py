"""Compute a convolution for all lanes in the ways that ``fused.py`` compares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_problem import (
    STREAMS,
    Problem,
    Result,
    Variant,
    Work,
    channels_to_lanes,
    has_triton,
    lanes_to_channels,
    to_images,
    to_rows,
)


@dataclass(frozen=True)
class Convolution(Problem):
    """A convolution without bias, padded so that stride 1 keeps the size of the square images."""

    channels: int
    outputs: int
    kernel: int
    stride: int
    size: int

    part = "convolutions"

    @property
    def name(self) -> str:
        return f"{self.kernel}×{self.kernel} {self.channels}→{self.outputs}, {self.size}→{self.out_size}"

    @property
    def directions(self) -> tuple[str, ...]:  # type: ignore[override]
        """The stem needs no gradient of its images."""
        return ("forward", "weight") if self.channels == 3 else ("forward", "input", "weight")

    @property
    def out_size(self) -> int:
        return (self.size - 1) // self.stride + 1

    def inputs(self, seed: int) -> SimpleNamespace:
        """Return images, weights and the gradient of the output."""
        images = (self.batch, self.size, self.size, self.channels)
        weights = (self.outputs, self.kernel, self.kernel, self.channels)
        x, weight, dy = self.random(seed, images, weights, (self.batch, self.out_size, self.out_size, self.outputs))
        weight /= (self.kernel**2 * self.channels) ** 0.5
        return SimpleNamespace(x=x.to(self.dtype), weight=weight.to(self.dtype), dy=dy.to(self.dtype))

    def compute(self, direction: str, x: Tensor, weight: Tensor, dy: Tensor, groups: int = 1) -> Tensor:
        """Return the output or a gradient of PyTorch's convolution of images (batch, channels, height, width)."""
        stride, padding = [self.stride] * 2, [self.kernel // 2] * 2
        if direction == "forward":
            return F.conv2d(x, weight, None, stride, padding, groups=groups)
        wanted = [direction == "input", direction == "weight", False]
        gradients: list[Tensor] = torch.ops.aten.convolution_backward(
            dy, x, weight, None, stride, padding, [1, 1], False, [0, 0], groups, wanted
        )
        return gradients[wanted.index(True)]

    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return the result in fp32, lane by lane."""
        tensors = [to_images(tensor).float() for tensor in (inputs.x, inputs.weight, inputs.dy)]
        return (to_rows(torch.stack([self.compute(direction, *lane) for lane in zip(*tensors, strict=True)])),)

    def variants(self) -> dict[str, Variant]:
        return {
            STREAMS: separate_convolutions, **({"triton": implicit_products} if has_triton(self.device) else {}),
            "matrix products": matrix_products, "shifted products": shifted_products,
            "grouped, channels last": grouped_channels_last, "grouped, contiguous": grouped_contiguous,
            "vmap": mapped_convolution,
        }  # fmt: skip


def separate_convolutions(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Convolve each lane by itself with cuDNN."""

    def lane(number: int) -> Callable[[], Result]:
        x, weight, dy = (to_images(tensor[number]) for tensor in (inputs.x, inputs.weight, inputs.dy))
        return lambda: (to_rows(problem.compute(direction, x, weight, dy)),)

    return {"": [lane(number) for number in range(problem.lanes)]}


def implicit_products(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Convolve all lanes in one launch of a Triton kernel. Gradients of weights are in fp32."""
    import fused_kernels as kernels

    x, weight, dy, stride = inputs.x, inputs.weight, inputs.dy, problem.stride

    def work(tile: kernels.Tile) -> Work:
        if direction == "forward":
            return [lambda: (kernels.convolve(x, weight, stride, tile),)]
        if direction == "input":
            return [lambda: (kernels.convolve_input_gradient(dy, weight, problem.size, stride, tile),)]
        return [lambda: (kernels.convolve_weight_gradient(x, dy, problem.kernel, stride, tile),)]

    if direction == "weight":
        choices = kernels.weight_tiles(problem.outputs, problem.channels)
    else:
        choices = kernels.tiles(problem.outputs if direction == "forward" else problem.channels)
    return {tile.name: work(tile) for tile in choices}


def matrix_products(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Copy what each output pixel sees into a row (im2col), and multiply the rows of all lanes with ``bmm``."""
    kernel, stride, pad, size, out = (
        problem.kernel, problem.stride, problem.kernel // 2, problem.size, problem.out_size,
    )  # fmt: skip
    weight, dy = inputs.weight.flatten(2), inputs.dy.flatten(1, 3)

    def columns() -> Tensor:
        padded = F.pad(inputs.x, (0, 0, pad, pad, pad, pad)) if pad else inputs.x
        windows = padded.unfold(2, kernel, stride).unfold(3, kernel, stride)
        return windows.movedim(4, 6).reshape(problem.lanes, -1, kernel * kernel * problem.channels)

    def forward() -> Result:
        return (torch.bmm(columns(), weight.transpose(1, 2)).view_as(inputs.dy),)

    def input_gradient() -> Result:
        seen = torch.bmm(dy, weight).view(*inputs.dy.shape[:4], kernel, kernel, problem.channels)
        padded = seen.new_zeros((problem.lanes, problem.batch, size + 2 * pad, size + 2 * pad, problem.channels))
        reach = stride * (out - 1) + 1
        for down in range(kernel):
            for right in range(kernel):
                view = padded[:, :, down : down + reach : stride, right : right + reach : stride]
                view += seen[..., down, right, :]
        return (padded[:, :, pad : pad + size, pad : pad + size].contiguous(),)

    def weight_gradient() -> Result:
        return (torch.bmm(dy.transpose(1, 2), columns()).view_as(inputs.weight),)

    return {"": [{"forward": forward, "input": input_gradient, "weight": weight_gradient}[direction]]}


def shifted_products(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Add up one ``baddbmm`` for each shift of the kernel, on padded images whose rows are shifted as a whole.

    With stride 2, the rows and columns of the images are first separated into even and odd ones. An output has the
    rows of the padded images; those behind the edge are dropped.
    """
    lanes, batch, channels, kernel, stride, pad, size, out = (
        problem.lanes, problem.batch, problem.channels, problem.kernel, problem.stride, problem.kernel // 2,
        problem.size, problem.out_size,
    )  # fmt: skip
    reach = (kernel - 1) // stride
    side = out + reach  # of the padded images, by kind of row
    rows = batch * side * side - reach * (side + 1)
    below, behind = stride * side - size - pad, side - out
    weight = inputs.weight
    shifts = [(down, right) for down in range(kernel) for right in range(kernel)]

    def kind(shift: tuple[int, int]) -> int:
        return shift[0] % stride * stride + shift[1] % stride

    def shifted(images: Tensor, shift: tuple[int, int]) -> Tensor:
        start = shift[0] // stride * side + shift[1] // stride
        return images[:, kind(shift), start : start + rows]

    def padded_images() -> Tensor:
        padded = F.pad(inputs.x, (0, 0, pad, below, pad, below))
        kinds = padded.view(lanes, batch, side, stride, side, stride, channels).permute(0, 3, 5, 1, 2, 4, 6)
        return kinds.reshape(lanes, stride * stride, batch * side * side, channels)

    def padded_gradient() -> Tensor:
        return F.pad(inputs.dy, (0, 0, 0, behind, 0, behind)).flatten(1, 3)[:, :rows]

    def forward() -> Result:
        images = padded_images()
        y = images.new_empty((lanes, batch * side * side, problem.outputs))
        for shift in shifts:
            factors = weight[:, :, shift[0], shift[1]].transpose(1, 2)
            y[:, :rows].baddbmm_(shifted(images, shift), factors, beta=0 if shift == (0, 0) else 1)
        return (y.view(lanes, batch, side, side, -1)[:, :, :out, :out].contiguous(),)

    def input_gradient() -> Result:
        dy = padded_gradient()
        images = dy.new_zeros((lanes, stride * stride, batch * side * side, channels))
        for shift in shifts:
            shifted(images, shift).baddbmm_(dy, weight[:, :, shift[0], shift[1]])
        padded = images.view(lanes, stride, stride, batch, side, side, channels).permute(0, 3, 4, 1, 5, 2, 6)
        padded = padded.reshape(lanes, batch, stride * side, stride * side, channels)
        return (padded[:, :, pad : pad + size, pad : pad + size].contiguous(),)

    def weight_gradient() -> Result:
        images, dy = padded_images(), padded_gradient().transpose(1, 2)
        gradient = torch.empty_like(weight)
        for shift in shifts:
            torch.bmm(dy, shifted(images, shift), out=gradient[:, :, shift[0], shift[1]])
        return (gradient,)

    return {"": [{"forward": forward, "input": input_gradient, "weight": weight_gradient}[direction]]}


def grouped_channels_last(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Convolve all lanes as groups of one convolution, channels last."""
    return _grouped(problem, inputs, direction, torch.channels_last)


def grouped_contiguous(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Convolve all lanes as groups of one convolution, channels first."""
    return _grouped(problem, inputs, direction, torch.contiguous_format)


def _grouped(
    problem: Convolution, inputs: SimpleNamespace, direction: str, layout: torch.memory_format
) -> dict[str, Work]:
    lanes = problem.lanes
    x, dy = (lanes_to_channels(tensor).contiguous(memory_format=layout) for tensor in (inputs.x, inputs.dy))
    weight = to_images(inputs.weight).flatten(0, 1).contiguous(memory_format=layout)

    def work() -> Result:
        result = problem.compute(direction, x, weight, dy, lanes)
        if direction == "weight":
            return (to_rows(result.unflatten(0, (lanes, -1))),)
        return (channels_to_lanes(result, lanes),)

    return {"": [work]}


def mapped_convolution(problem: Convolution, inputs: SimpleNamespace, direction: str) -> dict[str, Work]:
    """Map PyTorch's convolution over the lanes with ``torch.func.vmap``."""
    tensors = [to_images(tensor) for tensor in (inputs.x, inputs.weight, inputs.dy)]
    mapped = torch.func.vmap(lambda *lane: problem.compute(direction, *lane))
    return {"": [lambda: (to_rows(mapped(*tensors)),)]}
