"""Images of a batch to the network's input: random crop, flip, scaling, normalisation; on the device, no loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.stream import Stream


def random_crop(x: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """Zero-pad each image of (batch, channels, height, width) by ``pad`` and cut it out at a place of its own."""
    batch, _, height, width = x.shape
    padded = F.pad(x, (pad, pad, pad, pad))
    offset = torch.randint(2 * pad + 1, (2, batch, 1), generator=generator, device=x.device)
    rows = offset[0] + torch.arange(height, device=x.device)  # (batch, height)
    columns = offset[1] + torch.arange(width, device=x.device)  # (batch, width)
    image = torch.arange(batch, device=x.device)[:, None, None]
    cut = padded.permute(0, 2, 3, 1)[image, rows[:, :, None], columns[:, None, :]]  # (batch, height, width, channels)
    return cut.permute(0, 3, 1, 2)


def random_flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability ½."""
    turn = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
    return torch.where(turn, x.flip(-1), x)


class Preparation:
    """How one stream's images become inputs: ``plain`` to test, ``augmented`` to train."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self._pad, self._flip = stream.pad, stream.flip
        self._mean = torch.tensor(stream.mean, device=device).reshape(-1, 1, 1) if stream.mean else None
        self._std = torch.tensor(stream.std, device=device).reshape(-1, 1, 1) if stream.std else None

    def plain(self, x: Tensor) -> Tensor:
        x = x.float().div_(255) if x.dtype == torch.uint8 else x.float()
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        return x

    def augmented(self, x: Tensor, generator: torch.Generator) -> Tensor:
        if self._pad:
            x = random_crop(x, self._pad, generator)
        if self._flip:
            x = random_flip(x, generator)
        return self.plain(x)
