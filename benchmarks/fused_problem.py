"""Define what ``fused.py`` times: a problem is one part of a training step, a variant is a way to compute it.

The tensors of a problem have the lanes first, and images follow as channels-last: (lanes, batch, height, width,
channels). A variant is a function that prepares its own copies of the inputs in the layout it needs, and returns its
work. Only the work is timed. It returns views with the lanes first for the check.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

Result = tuple[Tensor, ...]
Work = Sequence[Callable[[], Result]]  # one function for each stream
# A function of problem, inputs and direction. The keys name choices, such as the tiles of a kernel.
Variant = Callable[[Any, Any, str], dict[str, Work]]

STREAMS = "streams"  # what runs side by side do today: each lane has a CUDA stream of its own


def has_triton(device: torch.device) -> bool:
    """Return whether Triton can compute on this device: on a GPU, or on a CPU in its interpreter."""
    usable = device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
    return usable and find_spec("triton") is not None


@dataclass(frozen=True)
class Problem(ABC):
    """One part of a step, computed for all lanes; ``occurrences`` is how often a step computes it."""

    lanes: int
    batch: int
    device: torch.device
    occurrences: int

    part: ClassVar[str]
    directions: ClassVar[tuple[str, ...]] = ("forward and backward",)

    @property
    @abstractmethod
    def name(self) -> str:
        """What distinguishes the problem from others of its part."""

    @abstractmethod
    def inputs(self, seed: int) -> SimpleNamespace:
        """Return random inputs."""

    @abstractmethod
    def reference(self, inputs: SimpleNamespace, direction: str, variant: str) -> Result:
        """Return the result for these inputs in fp32, with the lanes first."""

    @abstractmethod
    def variants(self) -> dict[str, Variant]:
        """Return the ways to compute it; ``STREAMS`` is the first."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of images: bf16, or fp32 on a CPU."""
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    def random(self, seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
        """Return normally distributed tensors in fp32 with the lanes first."""
        generator = torch.Generator(self.device).manual_seed(seed)
        return [torch.randn((self.lanes, *shape), generator=generator, device=self.device) for shape in shapes]


def to_images(rows: Tensor) -> Tensor:
    """Return (…, height, width, channels) as a view (…, channels, height, width)."""
    return rows.movedim(-1, -3)


def to_rows(images: Tensor) -> Tensor:
    """Return (…, channels, height, width) as a view (…, height, width, channels)."""
    return images.movedim(-3, -1)


def lanes_to_channels(rows: Tensor) -> Tensor:
    """Return (lanes, batch, height, width, channels) as channels-last images (batch, lanes × channels, …)."""
    return rows.permute(1, 2, 3, 0, 4).flatten(3).permute(0, 3, 1, 2)


def channels_to_lanes(images: Tensor, lanes: int) -> Tensor:
    """Return images (batch, lanes × channels, height, width) as a view with the lanes first."""
    separate: Tensor = images.unflatten(1, (lanes, -1))
    return separate.permute(1, 0, 3, 4, 2)
