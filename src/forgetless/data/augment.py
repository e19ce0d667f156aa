"""Images of a batch to the network's input: random crop, flip, scaling, normalisation; on the device, no loop."""

from __future__ import annotations

from copy import copy

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.compute import kernels
from forgetless.data.stream import Stream


def crop(x: Tensor, pad: int, offset: Tensor, *, mirror: bool = False) -> Tensor:
    """Pad each image of (batch, channels, height, width) by ``pad`` and cut it out at its ``offset``.

    Over the edge it is black, or with ``mirror`` the image mirrored there, the pixels of the edge not twice.
    """
    batch, _, height, width = x.shape
    rows = offset[0] + torch.arange(height, device=x.device)  # (batch, height)
    columns = offset[1] + torch.arange(width, device=x.device)  # (batch, width)
    if mirror:
        rows, columns = _inside(rows - pad, height), _inside(columns - pad, width)
    else:
        x = F.pad(x, (pad, pad, pad, pad))
    image = torch.arange(batch, device=x.device)[:, None, None]
    cut = x.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (batch, height, width, channels)
    return cut.permute(0, 3, 1, 2)


def _inside(place: Tensor, size: int) -> Tensor:
    """Places from 1 − size to 2 · size − 2, mirrored at 0 and at size − 1."""
    return size - 1 - (size - 1 - place.abs()).abs()


def flip(x: Tensor, turn: Tensor) -> Tensor:
    """Mirror left to right each image whose number in ``turn`` is below ½."""
    return torch.where(turn < 0.5, x.flip(-1), x)


class Preparation:
    """How one stream's images become inputs: ``plain`` to test, ``augmented`` to train."""

    def __init__(self, stream: Stream, device: torch.device, *, channels_last: bool = False) -> None:
        self._channels_last = channels_last
        self._pad, self._flip, self._mirror = stream.pad, stream.flip, stream.mirror
        self._mean = self._std = None
        if stream.mean and stream.std:
            channels = (stream.shape[0], *[1] * (len(stream.shape) - 1))  # of images, or of plain features
            self._mean, self._std = (
                torch.tensor(values, device=device).expand(stream.shape[0]).reshape(channels).contiguous()
                for values in (stream.mean, stream.std)
            )

    def cropping(self, pad: int) -> Preparation:
        """The same with crops that may lie over the edge by ``pad``, where they find the image mirrored."""
        made = copy(self)
        made._pad, made._mirror = pad, True
        return made

    def plain(self, x: Tensor) -> Tensor:
        # A copy, also of float32: a network that changes its input in place must not change the data set.
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
        elif x.is_floating_point() or self._mean is not None:
            x = x.to(torch.float32, copy=self._mean is None)
        else:  # numbers of tokens
            x = x.clone()
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last and x.ndim == 4 else x

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        offset = turn = None
        if self._pad:
            shape = (2, len(x), 1)
            offset = torch.randint(2 * self._pad + 1, shape, generator=generator, device=x.device)
        if self._flip:
            turn = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device)
        if kernels.serve(x) and x.dtype == torch.uint8 and x.ndim == 4:
            from forgetless.compute.kernels import augment as augment_cuda

            return augment_cuda.augment(x, offset, turn, self._mean, self._std, self._pad, mirror=self._mirror)
        if offset is not None:
            x = crop(x, self._pad, offset, mirror=self._mirror)
        if turn is not None:
            x = flip(x, turn)
        return self.plain(x)
