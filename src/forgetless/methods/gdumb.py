"""GDumb (Prabhu et al. 2020): collect a class-balanced memory, then train on it alone, from the initial network.

Training: SGD over ``memory_epochs`` of the memory; learning rate 0.1 · ``lr_high`` in the first epoch, ``lr_high`` in
the second, then cosine annealing to ``lr_low`` with warm restarts after 1, 2, 4, … epochs; CutMix (Yun et al. 2019)
with α = 1 and probability ``cutmix``. Deviation: within a class the memory is a uniform sample of all that was seen,
not its first examples, and with several epochs, which it is not made for, an image can be in it more than once.

It learns at the end of the stream alone: its accuracies after earlier tasks are those of the initial network, and what
is computed from them (forgetting, transfer) says nothing, unless the run is one with ``anytime``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class GDumb(Method):
    memory: ClassVar[str] = "balanced"
    tells_sensitivity: ClassVar[bool] = False
    memory_epochs: int = setting(256, "epochs over the memory", least=1)
    lr_high: float = setting(0.05, "highest learning rate", above=0)
    lr_low: float = setting(0.0005, "lowest learning rate", least=0)
    cutmix: float = setting(0.5, "probability of CutMix for a batch", least=0, most=1)
    epoch: int = field(default=0, init=False, repr=False)  # of those over the memory, made
    numbers: Tensor | None = field(default=None, init=False, repr=False)  # the state of the host's random ones then
    initial: list[Tensor] = field(default_factory=list, init=False, repr=False)  # the network's, before the stream

    def begin(self, learner: Learner) -> None:
        self.epoch, self.numbers = 0, None  # also after a run that was broken off
        self.initial = [tensor.detach().clone() for tensor in learner.network.state_dict().values()]

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.zeros((), device=learner.device), {}

    def finish(self, learner: Learner) -> Iterator[None]:
        device = learner.device
        if not self.epoch:  # k-FPF has finetuned the network on the way
            with torch.no_grad():
                for tensor, value in zip(learner.network.state_dict().values(), self.initial, strict=True):
                    tensor.copy_(value)
        host = torch.Generator()
        if self.numbers is None:
            host.manual_seed(int(torch.randint(2**31, (), generator=learner.generator, device=device)))
        else:
            host.set_state(self.numbers.cpu())
        place = torch.zeros(learner.batch, dtype=torch.int64, device=device)
        rate = torch.zeros((), device=device)
        box = torch.zeros(3, device=device)
        for epoch in range(self.epoch, self.memory_epochs):
            rate.fill_(learning_rate(epoch, self.lr_high, self.lr_low))
            order = torch.randperm(len(learner.buffer), generator=learner.generator, device=device)
            for rows in learner.batches(order):
                mixes = float(torch.rand((), generator=host)) < self.cutmix
                if mixes:
                    box.copy_(torch.rand(3, generator=host))
                place[: len(rows)].copy_(rows)
                key = ("train", len(rows), mixes)
                fit = partial(self._fit, learner, place[: len(rows)], rate, box if mixes else None)
                learner.counted("train", len(rows), partial(learner.engine.call, key, fit))
            self.epoch, self.numbers = epoch + 1, host.get_state()
            yield
        self.epoch, self.numbers = 0, None

    def _fit(self, learner: Learner, rows: Tensor, rate: Tensor, box: Tensor | None) -> None:
        x, y = learner.buffer["x"].index_select(0, rows), learner.buffer["y"].index_select(0, rows)
        inputs = learner.augment(x)
        if box is None:
            loss = F.cross_entropy(learner.forward(inputs), y)
        else:
            order = torch.randperm(len(y), generator=learner.generator, device=y.device)
            inputs, share = cut_and_mix(inputs, inputs[order], box)
            logits = learner.forward(inputs)
            loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])
        learner.update(loss, rate)


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


def cut_and_mix(x: Tensor, other: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """A box of ``other`` pasted into ``x``, and the share of ``x`` left. ``numbers`` in [0, 1): that, row, column.

    Of examples with one dimension it is a piece.
    """
    share = 1 - numbers[0]  # α = 1: uniform
    side = share if x.ndim == 2 else share.sqrt()

    def inside(place: Tensor, length: int) -> Tensor:
        """Which of ``length`` rows or columns the box covers."""
        middle, half = (place * length).floor(), (length * side).floor().div(2).floor()
        at = torch.arange(length, device=x.device)
        return (at >= middle - half) & (at < middle + half)

    covered = inside(numbers[2], x.shape[-1])
    if x.ndim > 2:
        covered = inside(numbers[1], x.shape[-2])[:, None] & covered
    return torch.where(covered, other, x), 1 - covered.sum() / covered.numel()
