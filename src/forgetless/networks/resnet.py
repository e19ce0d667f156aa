"""ResNet-18 (He et al., 2016) in the two forms the paper uses.

The small-image form has a 3×3 stride-1 stem and no pooling after it: 11,173,962 parameters at 10 classes. The ImageNet
form has a 7×7 stride-2 stem and a 3×3 stride-2 max-pool. Both start from PyTorch's default initialisation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.networks.norm import batch_norm, count_batches


class _Every(torch.autograd.Function):
    """Of an image every so many pixels each way, from the first."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int) -> Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last)
        ctx.format = torch.channels_last if last else torch.contiguous_format
        ctx.shape, ctx.stride = x.shape, stride
        return x[:, :, ::stride, ::stride].contiguous(memory_format=ctx.format)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = torch.empty(ctx.shape, dtype=gradient.dtype, device=gradient.device, memory_format=ctx.format).zero_()
        whole[:, :, :: ctx.stride, :: ctx.stride] = gradient
        return whole, None


class Shortcut(nn.Conv2d):
    """A 1×1 convolution with a stride; in training on a GPU one without, of the pixels it takes.

    cuDNN has no good kernels for those with a stride at small batches.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__(channels, width, 1, stride, bias=False)

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.training and x.is_cuda and x.ndim == 4 and not torch.compiler.is_compiling():
            pixels: Tensor = _Every.apply(x, self.stride[0])  # type: ignore[no-untyped-call]
            return F.conv2d(pixels, weight, bias)
        y: Tensor = super()._conv_forward(x, weight, bias)
        return y


class BasicBlock(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(Shortcut(channels, width, stride), nn.BatchNorm2d(width))

    def forward(self, x: Tensor, passes: int = 1) -> Tensor:
        y = batch_norm(self.bn1, self.conv1(x), relu=True, passes=passes)
        bn = self.shortcut[-1] if isinstance(self.shortcut, nn.Sequential) else None
        if isinstance(self.shortcut, nn.Sequential) and isinstance(bn, nn.BatchNorm2d):
            x = batch_norm(bn, self.shortcut[0](x), passes=passes)
        else:
            x = self.shortcut(x)
        return batch_norm(self.bn2, self.conv2(y), relu=True, residual=x, passes=passes)


class ResNet(nn.Module):
    """``conv1``, ``bn1``, ``block1`` … ``block4``, ``fc``; two basic blocks each, widths w, 2w, 4w, 8w.

    Called with ``passes`` = p, the batch is p batches one after the other, each with batch statistics of its own.
    """

    def __init__(self, classes: int, channels: int, width: int, *, imagenet: bool) -> None:
        super().__init__()
        if imagenet:
            self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
            self.pool: nn.Module = nn.MaxPool2d(3, 2, 1)
        else:
            self.conv1 = nn.Conv2d(channels, width, 3, 1, 1, bias=False)
            self.pool = nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        self.block1 = _stage(width, width, 1)
        self.block2 = _stage(width, 2 * width, 2)
        self.block3 = _stage(2 * width, 4 * width, 2)
        self.block4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, classes)

    def features(self, x: Tensor, passes: int = 1) -> Tensor:
        """What the last layer sees: the spatial mean of ``block4``."""
        count_batches((module for module in self.modules() if isinstance(module, nn.BatchNorm2d)), x, passes)
        x = self.pool(batch_norm(self.bn1, self.conv1(x), relu=True, passes=passes))  # (batch, width, height, width)
        for stage in (self.block1, self.block2, self.block3, self.block4):
            for block in stage:
                x = block(x, passes)
        return x.mean((2, 3))  # (batch, 8 × width)

    def forward(self, x: Tensor, passes: int = 1) -> Tensor:
        logits: Tensor = self.fc(self.features(x, passes))
        return logits


def _stage(channels: int, width: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(channels, width, stride), BasicBlock(width, width, 1))


def resnet18(classes: int, channels: int = 3, width: int = 64) -> ResNet:
    """ResNet-18 for small images (28×28 to 64×64)."""
    return ResNet(classes, channels, width, imagenet=False)


def resnet18_imagenet(classes: int, channels: int = 3, width: int = 64) -> ResNet:
    """ResNet-18 for images of about 224×224."""
    return ResNet(classes, channels, width, imagenet=True)
