"""What a method trains: a network, its learning rate, a buffer, the preparation of images, and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from forgetless.augment import Preparation
from forgetless.buffer import Buffer
from forgetless.flops import Ledger, count, forward_flops, nominal_flops
from forgetless.stream import Stream

T = TypeVar("T")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Within, the network is in evaluation mode; on leaving, every module's mode is as it was."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class Batch:
    """Examples as they come: images not yet augmented, labels, the number of their task (from 0)."""

    x: Tensor
    y: Tensor
    task: int


class Learner:
    """SGD without momentum: θ ← θ − lr · (∇L + weight_decay · θ). ``replay`` examples are drawn at a time."""

    def __init__(
        self,
        network: nn.Module,
        stream: Stream,
        *,
        lr: float,
        batch: int,
        replay: int,
        weight_decay: float,
        buffer: Buffer | None,
        device: torch.device,
        seed: int,
    ) -> None:
        self.network = network
        self.lr, self.batch, self.replay_size, self.weight_decay = lr, batch, replay, weight_decay
        self.classes, self.tasks, self.shape = stream.classes, len(stream.tasks), stream.shape
        self._seen = [1 + max(c for task in stream.tasks[: t + 1] for c in task.classes) for t in range(self.tasks)]
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.ledger = Ledger()
        self.finetuned = False  # whether the output layer was finetuned, after which it is what predicts
        self.parameters: list[nn.Parameter] = []
        self._buffer = buffer
        self._prepare = Preparation(stream, device)
        self._costs: dict[object, int] = {}
        self.take_parameters()

    @property
    def buffer(self) -> Buffer:
        assert self._buffer is not None, "this method declares no memory"
        return self._buffer

    def seen(self, task: int) -> int:
        """How many classes the tasks up to this one have (from 0; −1: none); in a class-IL stream 0 to that − 1."""
        return self._seen[task] if task >= 0 else 0

    def take_parameters(self) -> None:
        """Train what requires gradients now."""
        self.parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def augment(self, x: Tensor) -> Tensor:
        """Images to inputs, as in training."""
        return self._prepare.augmented(x, self.generator)

    def plain(self, x: Tensor) -> Tensor:
        """Images to inputs, as in testing."""
        return self._prepare.plain(x)

    def replay(self, size: int | None = None) -> dict[str, Tensor]:
        """Examples drawn from the buffer without replacement, their images augmented anew."""
        rows = self.buffer.draw(size or self.replay_size, self.generator)
        rows["x"] = self.augment(rows["x"])
        return rows

    def gradients(self, loss: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found, strict=True)]

    @torch.no_grad()
    def descend(self, gradients: Sequence[Tensor], lr: float | None = None) -> None:
        """One step of SGD along these gradients."""
        rate = self.lr if lr is None else lr
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            if self.weight_decay:
                gradient = gradient + self.weight_decay * parameter
            parameter.add_(gradient, alpha=-rate)

    def update(self, loss: Tensor, lr: float | None = None) -> None:
        self.descend(self.gradients(loss), lr)

    def counted(self, phase: str, key: object, call: Callable[[], T]) -> T:
        """Run ``call`` and put its FLOPs into the ledger; counted the first time this key is seen, then known."""
        result: list[T] = []
        if (phase, key) not in self._costs:
            self._costs[phase, key] = count(lambda: result.append(call()))
        else:
            result.append(call())
        self.ledger.add(phase, self._costs[phase, key])
        return result[0]

    def spend(self, phase: str, examples: int, *, backward: bool = False) -> None:
        """Put passes of so many examples into the ledger: forward, or forward and backward."""
        key = ("example", backward)
        if key not in self._costs:
            x = torch.empty(1, *self.shape)
            self._costs[key] = (nominal_flops if backward else forward_flops)(self.network, x)
        self.ledger.add(phase, self._costs[key], examples)
