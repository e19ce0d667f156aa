"""How a finetuning descends: the optimizer, the learning rate of each step, and what is drawn per step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from forgetless.compute.distributed import Processes
from forgetless.repair.settings import Finetune

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8  # of Adam (Kingma & Ba 2015)
PART = 2**26  # parameters that Adam moves at once, so that its intermediate results stay small


@dataclass(frozen=True)
class Descent:
    """The steps of one finetuning.

    ``rates`` has the learning rate of each step. With ``spare``, held-out examples of the buffer are not drawn. With
    ``clip``, gradients whose norm is larger are scaled down to it.
    """

    rates: tuple[float, ...]
    batch: int
    distill: float = 0.0
    optimizer: str = "sgd"  # or "adam"
    spare: bool = False
    clip: float | None = None

    @staticmethod
    def cosine(settings: Finetune) -> Descent:
        """Return the paper's descent: SGD without momentum, annealed from ``lr`` to 0 by a cosine."""
        assert settings.steps is not None
        assert settings.lr is not None
        waves = [1 + math.cos(math.pi * step / settings.steps) for step in range(settings.steps)]
        return Descent(tuple(settings.lr / 2 * wave for wave in waves), settings.batch, settings.distill)

    @property
    def steps(self) -> int:
        return len(self.rates)

    @property
    def multipliers(self) -> list[float]:
        """The factor of each step's update: the rate, for Adam with its corrections of the first steps' averages."""
        if self.optimizer == "sgd":
            return list(self.rates)
        return [
            rate * math.sqrt(1 - BETA_2**step) / (1 - BETA_1**step) for step, rate in enumerate(self.rates, start=1)
        ]


def sharing(descent: Descent, processes: Processes) -> Descent:
    """Return the part of a descent that one of several processes takes: each draws its share of a batch."""
    return replace(descent, batch=processes.share(descent.batch, "batch"))


@final
class Schedule:
    """The learning rate of each step, the number of the step and the losses, on the device.

    Steps that are captured into a CUDA graph read and write these tensors, and Adam's averages.
    """

    def __init__(self, steps: int, device: torch.device) -> None:
        self.rates = torch.zeros(steps, device=device)
        self._values: list[float] = []  # of ``rates``
        self.losses = torch.zeros(steps, device=device)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        self.checked = False  # whether a first step was taken, so that a batch is known to fit the network
        self.averages: Averages | None = None

    def begin(self, rates: list[float]) -> None:
        """Take these rates, and begin with the first step."""
        if rates != self._values:
            self.rates.copy_(torch.tensor(rates))
            self._values = rates
        self.step.zero_()
        if self.averages is not None:
            self.averages.reset()

    def rate(self) -> Tensor:
        """Return the rate of the present step."""
        return self.rates.index_select(0, self.step)[0]

    def record(self, loss: Tensor) -> None:
        """Record the loss of the present step, and go to the next."""
        self.losses.index_copy_(0, self.step, loss.float().reshape(1))
        self.step.add_(1)
        self.checked = True


@final
class Optimizer:
    """SGD without momentum, or Adam, for one descent."""

    def __init__(self, descent: Descent) -> None:
        self._adam = descent.optimizer == "adam"
        self._rates = descent.multipliers
        self._averages: Averages | None = None
        self._schedule: Schedule | None = None

    def use(self, schedule: Schedule) -> None:
        """Take the rates from the device from now on, and begin with the first step."""
        schedule.begin(self._rates)
        self._schedule, self._averages = schedule, schedule.averages

    def scale(self) -> Tensor | None:
        """Return the factor that ``update`` expects in the gradients: SGD's rate on the device, which saves a pass."""
        return None if self._schedule is None or self._adam else self._schedule.rate()

    def update(self, parameters: list[Tensor], gradients: list[Tensor], step: int) -> None:
        """Move the parameters in the step with this number, from 0."""
        if not self._adam:
            torch._foreach_add_(parameters, gradients, alpha=-self._rates[step] if self._schedule is None else -1)
            return
        if self._averages is None:
            self._averages = Averages(parameters)
            if self._schedule is not None:
                self._schedule.averages = self._averages  # the captured step updates these tensors
        for part, directions in self._averages.update(gradients):
            if self._schedule is None:
                torch._foreach_add_(parameters[part], directions, alpha=-self._rates[step])
            else:
                torch._foreach_mul_(directions, self._schedule.rate())
                torch._foreach_add_(parameters[part], directions, alpha=-1)

    def forget(self) -> None:
        """Forget the averages of all gradients."""
        self._averages = None


@final
class Averages:
    """Adam's running averages of the gradients and of their squares."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.first = [torch.zeros_like(parameter) for parameter in parameters]
        self.second = [torch.zeros_like(parameter) for parameter in parameters]

    def reset(self) -> None:
        """Forget all gradients."""
        if self.first:
            torch._foreach_zero_(self.first)
            torch._foreach_zero_(self.second)

    def update(self, gradients: list[Tensor]) -> Iterator[tuple[slice, list[Tensor]]]:
        """Add gradients, and yield the directions in which Adam moves the parameters, for a part of them at a time."""
        torch._foreach_lerp_(self.first, gradients, 1 - BETA_1)
        torch._foreach_mul_(self.second, BETA_2)
        torch._foreach_addcmul_(self.second, gradients, gradients, 1 - BETA_2)
        for part in slices([gradient.numel() for gradient in gradients]):
            roots = torch._foreach_sqrt(self.second[part])
            torch._foreach_add_(roots, EPSILON)
            yield part, list(torch._foreach_div(self.first[part], roots))


def slices(sizes: Sequence[int], most: int = PART) -> Iterator[slice]:
    """Yield slices of a list of tensors with these sizes, of at most ``most`` elements where a tensor has no more.

    >>> [(part.start, part.stop) for part in slices([3, 4, 9, 1, 2], most=7)]
    [(0, 2), (2, 3), (3, 5)]
    """
    start = total = 0
    for index, size in enumerate(sizes):
        if index > start and total + size > most:
            yield slice(start, index)
            start, total = index, 0
        total += size
    if sizes:
        yield slice(start, len(sizes))
