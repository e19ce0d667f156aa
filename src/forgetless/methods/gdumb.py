"""GDumb (Prabhu et al. 2020): collect a class-balanced memory, then train on it alone, from the initial network.

Training: SGD over ``epochs`` of the memory; learning rate 0.1 · ``lr_high`` in the first epoch, ``lr_high`` in the
second, then cosine annealing to ``lr_low`` with warm restarts after 1, 2, 4, … epochs; CutMix (Yun et al. 2019) with
α = 1 and probability ``cutmix``. Deviation: within a class the memory is a uniform sample of all that was seen, not
its first examples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method, setting


@final
@dataclass
class GDumb(Method):
    memory: ClassVar[str] = "balanced"
    tells_sensitivity: ClassVar[bool] = False
    epochs: int = setting(256, "epochs over the memory")
    lr_high: float = setting(0.05, "highest learning rate")
    lr_low: float = setting(0.0005, "lowest learning rate")
    cutmix: float = setting(0.5, "probability of CutMix for a batch")

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.zeros((), device=learner.device), {}

    def finish(self, learner: Learner) -> None:
        x, y = learner.buffer["x"], learner.buffer["y"]
        host = torch.Generator().manual_seed(
            int(torch.randint(2**31, (), generator=learner.generator, device=x.device))
        )
        for epoch in range(self.epochs):
            rate = learning_rate(epoch, self.lr_high, self.lr_low)
            order = torch.randperm(len(y), generator=learner.generator, device=y.device)
            for rows in order.split(learner.batch):
                fit = partial(self._fit, learner, x[rows], y[rows], rate, host)
                learner.counted("train", len(rows), fit)

    def _fit(self, learner: Learner, x: Tensor, y: Tensor, rate: float, host: torch.Generator) -> None:
        inputs = learner.augment(x)
        share, other = 1.0, y
        if float(torch.rand((), generator=host)) < self.cutmix:
            order = torch.randperm(len(y), generator=learner.generator, device=y.device)
            inputs, share = cut_and_mix(inputs, inputs[order], torch.rand(3, generator=host).tolist())
            other = y[order]
        logits = learner.network(inputs)
        learner.update(share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, other), rate)


def learning_rate(epoch: int, high: float, low: float) -> float:
    """By epoch: a tenth, then all of ``high``, then a cosine to ``low`` that starts again after 1, 2, 4, … epochs."""
    if epoch == 0:
        return 0.1 * high
    if epoch == 1:
        return high
    cycle, place = 1, epoch - 1
    while place >= cycle:
        place -= cycle
        cycle *= 2
    return low + (high - low) * (1 + math.cos(math.pi * place / cycle)) / 2


def cut_and_mix(x: Tensor, other: Tensor, numbers: list[float]) -> tuple[Tensor, float]:
    """A box of ``other`` pasted into ``x``, and the share of ``x`` left. ``numbers`` in [0, 1): that, row, column."""
    height, width = x.shape[-2:]
    side = math.sqrt(1 - numbers[0])  # α = 1: the share kept is uniform
    row, column = int(numbers[1] * height), int(numbers[2] * width)
    half_height, half_width = int(height * side) // 2, int(width * side) // 2
    top, bottom = max(row - half_height, 0), min(row + half_height, height)
    left, right = max(column - half_width, 0), min(column + half_width, width)
    mixed = x.clone()
    mixed[..., top:bottom, left:right] = other[..., top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
