"""GDumb (Prabhu et al. 2020): collect a class-balanced memory, then train on it alone, from the initial network.

    L = CE(batch of the memory),   with CutMix (Yun et al. 2019, α = 1) at probability ``cutmix``

SGD over ``memory_epochs`` of the memory. The learning rate is 0.1 · ``lr_high`` in the first epoch and ``lr_high`` in
the second; cosine annealing to ``lr_low`` follows, with warm restarts after 1, 2, 4, … epochs. Deviations: within a
class the memory is a uniform sample of all examples seen, not the first ones. With several epochs per task, for which
the method is not made, an image can be stored more than once.

The network learns only at the end of the stream. Its accuracies after earlier tasks are those of the initial network,
so forgetting and transfer mean nothing, except in a run with ``anytime``.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
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
    """Train from scratch on a class-balanced memory, at the end of the stream."""

    memory: ClassVar[str] = "balanced"
    sequential: ClassVar[bool] = False
    memory_epochs: int = setting(256, "Number of epochs over the memory.", least=1)
    lr_high: float = setting(0.05, "Highest learning rate.", above=0)
    lr_low: float = setting(0.0005, "Lowest learning rate.", least=0)
    cutmix: float = setting(0.5, "Probability that a batch is mixed by CutMix.", least=0, most=1)

    def begin(self, learner: Learner) -> None:
        self.epoch = 0  # finished epochs over the memory
        self.numbers: Tensor | None = None  # state of the CPU generator after them
        self.initial = [tensor.clone() for tensor in learner.network.state_dict().values()]

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.zeros((), device=learner.device), {}

    def finish(self, learner: Learner) -> Iterator[None]:
        device = learner.device
        if self.epoch == 0:
            for tensor, value in zip(learner.network.state_dict().values(), self.initial, strict=True):
                tensor.copy_(value)  # k-FPF may have finetuned the network
        chance = torch.Generator()
        if self.numbers is None:
            chance.manual_seed(int(torch.randint(2**31, (), generator=learner.generator, device=device)))
        else:
            chance.set_state(self.numbers.cpu())
        staged_rows = torch.zeros(learner.batch, dtype=torch.int64, device=device)
        rate = torch.zeros((), device=device)
        box = torch.zeros(3, device=device)
        for epoch in range(self.epoch, self.memory_epochs):
            rate.fill_(learning_rate(epoch, self.lr_high, self.lr_low))
            order = torch.randperm(len(learner.buffer), generator=learner.generator, device=device)
            for rows in learner.batches(order):
                mixes = float(torch.rand((), generator=chance)) < self.cutmix
                if mixes:
                    box.copy_(torch.rand(3, generator=chance))
                staged_rows[: len(rows)].copy_(rows)
                fit = partial(self._fit, learner, staged_rows[: len(rows)], rate, box if mixes else None)
                call = partial(learner.engine.call, ("train", len(rows), mixes), fit)
                learner.run_counted("train", len(rows), call)
            self.epoch, self.numbers = epoch + 1, chance.get_state()
            yield
        self.epoch, self.numbers = 0, None

    def _fit(self, learner: Learner, rows: Tensor, rate: Tensor, box: Tensor | None) -> None:
        """Take one step on these rows of the memory, mixed by CutMix if ``box`` is given."""
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
    """Return the rate of an epoch: ``high`` / 10, ``high``, then cosines to ``low`` over 1, 2, 4, … epochs."""
    if epoch == 0:
        return 0.1 * high
    if epoch == 1:
        return high
    cycle = 1 << (epoch.bit_length() - 1)  # the largest power of 2 up to epoch, at which it began
    return low + (high - low) * (1 + math.cos(math.pi * (epoch - cycle) / cycle)) / 2


def cut_and_mix(x: Tensor, other: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Paste a box of ``other`` into ``x`` (an interval if examples have one dimension); return also the share of ``x``.

    ``numbers`` are uniform in [0, 1): the share of ``x`` that should remain, and the row and column of the box.
    """
    share = 1 - numbers[0]  # α = 1: uniform
    side = share if x.ndim == 2 else share.sqrt()

    def covered_by_box(centre: Tensor, length: int) -> Tensor:
        middle, half = (centre * length).floor(), (length * side).floor().div(2).floor()
        positions = torch.arange(length, device=x.device)
        return (positions >= middle - half) & (positions < middle + half)

    covered = covered_by_box(numbers[2], x.shape[-1])
    if x.ndim > 2:
        covered = covered_by_box(numbers[1], x.shape[-2])[:, None] & covered
    return torch.where(covered, other, x), 1 - covered.sum() / covered.numel()
