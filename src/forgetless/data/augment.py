"""Turn a batch of images into inputs of a network: random crop, flip, scaling and normalisation, without a loop."""

from __future__ import annotations

from copy import copy
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.data.stream import Stream


def crop(x: Tensor, pad: int, offset: Tensor, *, mirror: bool = False) -> Tensor:
    """Return a crop of each image of (batch, channels, height, width), in the size of the image.

    Every side gets ``pad`` more pixels, black or mirrored (without repeating the edge). ``offset``, of shape
    (2, batch, 1), holds the row and column in the padded image at which each crop starts.
    """
    batch, _, height, width = x.shape
    rows = offset[0] + torch.arange(height, device=x.device)  # (batch, height)
    columns = offset[1] + torch.arange(width, device=x.device)  # (batch, width)
    if mirror:
        rows, columns = _reflected(rows - pad, height), _reflected(columns - pad, width)
    else:
        x = F.pad(x, (pad, pad, pad, pad))
    image = torch.arange(batch, device=x.device)[:, None, None]
    cut = x.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (batch, height, width, channels)
    return cut.permute(0, 3, 1, 2)


def _reflected(position: Tensor, size: int) -> Tensor:
    """Return positions from 1 − size to 2 · size − 2, reflected at 0 and at size − 1."""
    return size - 1 - (size - 1 - position.abs()).abs()


def flip(x: Tensor, chance: Tensor) -> Tensor:
    """Return the images, flipped left to right where ``chance`` (uniform in [0, 1)) is below ½."""
    return torch.where(chance < 0.5, x.flip(-1), x)


@final
class Preparation:
    """How the images of one stream become inputs: ``plain`` for testing, ``augmented`` for training."""

    def __init__(self, stream: Stream, device: torch.device, *, channels_last: bool = False) -> None:
        self._channels_last = channels_last
        self._pad, self._flip, self._mirror = stream.pad, stream.flip, stream.mirror
        self._mean = self._std = None
        if stream.mean and stream.std:
            channels = (stream.shape[0], *[1] * (len(stream.shape) - 1))
            self._mean, self._std = (
                torch.tensor(values, device=device).expand(stream.shape[0]).reshape(channels).contiguous()
                for values in (stream.mean, stream.std)
            )

    @property
    def crops(self) -> bool:
        """Whether training images are cropped."""
        return self._pad > 0

    def cropping(self, pad: int) -> Preparation:
        """Return a preparation with crops that reach over the edge by ``pad`` and see the image mirrored there."""
        cropping = copy(self)
        cropping._pad, cropping._mirror = pad, True
        return cropping

    def plain(self, x: Tensor) -> Tensor:
        """Return scaled and normalised inputs. They never share memory with ``x``, so networks may change them."""
        if x.dtype == torch.uint8:
            x = x.float().div_(255)
        elif x.is_floating_point() or self._mean is not None:
            x = x.to(torch.float32, copy=self._mean is None)
        else:  # tokens
            x = x.clone()
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        return x.contiguous(memory_format=torch.channels_last) if self._channels_last and x.ndim == 4 else x

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return inputs that are also cropped and flipped at random, as the stream declares."""
        if self._pad:
            offset = torch.randint(2 * self._pad + 1, (2, len(x), 1), generator=generator, device=x.device)
            x = crop(x, self._pad, offset, mirror=self._mirror)
        if self._flip:
            x = flip(x, torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device))
        return self.plain(x)
