"""What a method trains: a network, its learning rate, a buffer, the preparation of images, and random numbers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from forgetless.compute.cross_entropy import cross_entropy
from forgetless.compute.descent import descend
from forgetless.compute.engine import Engine
from forgetless.compute.flops import Ledger, count, forward_flops, nominal_flops
from forgetless.data.augment import Preparation
from forgetless.data.stream import Stream
from forgetless.methods.loader import batch_sizes
from forgetless.repair.buffer import Buffer

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


@contextmanager
def statistics_kept(network: nn.Module) -> Iterator[None]:
    """What passes in training mode do in here to running statistics is undone on leaving."""
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in network.named_buffers():
                buffer.copy_(before[name])


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
        engine: Engine,
        seed: int,
        costs: dict[object, int] | None = None,
    ) -> None:
        self.network = network
        self.engine = engine
        self.lr, self.batch, self.replay_size, self.weight_decay = lr, batch, replay, weight_decay
        self.classes, self.tasks, self.shape = stream.classes, len(stream.tasks), stream.shape
        self._seen = [1 + max(c for task in stream.tasks[: t + 1] for c in task.classes) for t in range(self.tasks)]
        self.examples = [len(task.train) for task in stream.tasks]  # training examples of each task
        self.device = engine.device
        foreign = [[label not in task.classes for label in range(stream.classes)] for task in stream.tasks]
        self.foreign = torch.tensor(foreign, device=self.device)  # (tasks, classes): whether not of the task
        self.generator = engine.generator(seed)
        self.ledger = Ledger()
        self.finetuned = False  # whether anything was, after which the output layer is what predicts
        self.parameters: list[Tensor] = []
        self._takes: list[bool] = []
        self._buffer = buffer
        self._example = torch.zeros(1, *stream.shape, dtype=stream.tasks[0].train.x.dtype)
        self._prepare = Preparation(stream, engine.device, channels_last=engine.channels_last)
        self.costs: dict[object, int] = {} if costs is None else costs  # FLOPs, of what was counted once
        self._batch_norm = any(isinstance(module, _BatchNorm) for module in network.modules())
        # Batch norm would take the statistics of a batch of one image for those of all.
        self.least = 2 if self._batch_norm else 1  # examples in a batch
        self._takes_passes = "passes" in inspect.signature(network.forward).parameters
        self.take_parameters()

    @property
    def buffer(self) -> Buffer:
        if self._buffer is None:
            raise ValueError('this method has no buffer: its memory is "none"; declare memory = "reservoir", say')
        return self._buffer

    def seen(self, task: int) -> int:
        """How many classes the tasks up to this one have (from 0; −1: none); in a class-IL stream 0 to that − 1."""
        return self._seen[task] if task >= 0 else 0

    def among(self, logits: Tensor, task: int) -> Tensor:
        """Scores with those of classes that are not of this task at −∞: no gradient reaches them."""
        return logits.masked_fill(self.foreign[task], -torch.inf)

    def take_parameters(self) -> None:
        """Train what requires gradients now."""
        self._takes = [parameter.requires_grad for parameter in self.network.parameters()]
        self.parameters = self.trained(list(self.network.parameters()))

    def trained(self, values: Sequence[T]) -> list[T]:
        """Of values, one for each parameter of the network, those of the parameters that are trained."""
        return [value for value, takes in zip(values, self._takes, strict=True) if takes]

    def augment(self, x: Tensor) -> Tensor:
        """Images to inputs, as in training."""
        return self._prepare.augmented(x, self.generator)

    def augmenting(self, pad: int) -> Callable[[Tensor], Tensor]:
        """Images to inputs for a finetuning: as in training, or with crops by ``pad``, mirrored at the edge."""
        if not pad:
            return self.augment
        prepare = self._prepare.cropping(pad)
        return lambda x: prepare.augmented(x, self.generator)

    def plain(self, x: Tensor) -> Tensor:
        """Images to inputs, as in testing."""
        return self._prepare.plain(x.to(self.device, non_blocking=True))

    def blank(self, examples: int) -> Tensor:
        """So many inputs of nothing, on the CPU, to count with."""
        return self.plain(self._example.expand(examples, *self.shape)).cpu()

    def forward(self, x: Tensor) -> Tensor:
        """What the network gives for inputs, in the run's precision."""
        return self.engine.forward(self.network, x)

    def passes(self, *images: Tensor) -> tuple[Tensor, ...]:
        """What the network gives for several batches of images, augmented, each a pass of its own.

        Where that comes to the same they are one call: for a network without batch norm, and for one whose ``forward``
        takes ``passes`` and keeps the statistics of equal batches apart, as ResNet does here.
        """
        sizes = [len(part) for part in images]
        together = not self._batch_norm or (self._takes_passes and len(set(sizes)) == 1)
        if len(images) == 1 or not together:
            return tuple(self.forward(self.augment(part)) for part in images)
        x = self.augment(torch.cat(images))
        arguments = {"passes": len(images)} if self._batch_norm else {}
        parts: tuple[Tensor, ...] = self.engine.forward(self.network, x, **arguments).split(sizes)
        return parts

    def batches(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Rows in batches, less a last one that is too small."""
        sizes = batch_sizes(len(rows), self.batch, self.least)
        parts: tuple[Tensor, ...] = rows[: sum(sizes)].split(sizes)
        return parts

    def recall(self, size: int | None = None) -> dict[str, Tensor]:
        """Examples drawn from the buffer without replacement, as they are stored."""
        return self.buffer.draw(size or self.replay_size, self.generator)

    def replay(self, size: int | None = None) -> dict[str, Tensor]:
        """Examples drawn from the buffer without replacement, their images augmented anew."""
        rows = self.recall(size)
        rows["x"] = self.augment(rows["x"])
        return rows

    def gradients(self, loss: Tensor, beside: Sequence[Tensor] = ()) -> list[Tensor]:
        """Of a loss, for each trained parameter, and then for each tensor of ``beside``."""
        return _gradients(loss, [*self.parameters, *beside])

    @torch.no_grad()
    def descend(
        self, gradients: Sequence[Tensor], lr: float | Tensor | None = None, scale: Sequence[Tensor] | None = None
    ) -> None:
        """One step of SGD along these gradients; a rate on the device may change between replays.

        ``scale`` multiplies the moves, that by weight decay too: where it is 0, a parameter keeps its bits.
        """
        rate = self.lr if lr is None else lr
        moves = list(gradients)
        if self.weight_decay:
            moves = list(torch._foreach_add(moves, self.parameters, alpha=self.weight_decay))
        if scale is not None:
            moves = list(torch._foreach_mul(moves, list(scale)))
        if isinstance(rate, Tensor):
            torch._foreach_sub_(self.parameters, list(torch._foreach_mul(moves, rate)))
        else:
            descend(self.parameters, moves, rate)

    def update(self, loss: Tensor, lr: float | Tensor | None = None) -> None:
        self.descend(self.gradients(loss), lr)

    def fit(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One step of SGD on inputs along their cross-entropy; gives that and the logits."""
        if (mlp := self.engine.without_graph(self.network, x)) is not None:
            loss, logits, gradients = mlp.backpropagate(x, y)
            self.descend([gradient for gradient in gradients if gradient is not None])
            return loss, logits
        logits = self.forward(x)
        loss, root, along = cross_entropy(logits, y)
        # Weight decay is added to the gradients first, in fp32.
        sources = self.parameters if self.weight_decay else self.engine.sources(root, self.parameters)
        self.descend(_gradients(root, sources, along))
        return loss.detach(), logits.detach()

    def counted(self, phase: str, key: object, call: Callable[[], T]) -> T:
        """Run ``call`` and put its FLOPs into the ledger; counted the first time this key is seen, then known."""
        result: list[T] = []
        if (phase, key) not in self.costs:
            self.costs[phase, key] = count(lambda: result.append(call()))
        else:
            result.append(call())
        self.ledger.add(phase, self.costs[phase, key])
        return result[0]

    def spend(self, phase: str, examples: int, *, backward: bool = False) -> None:
        """Put passes of so many examples into the ledger: forward, or forward and backward, nominally 3 × forward."""
        key = ("example", backward)
        if key not in self.costs:
            with evaluating(self.network):  # in training mode batch norm refuses one example of one pixel
                self.costs[key] = (nominal_flops if backward else forward_flops)(self.network, self.blank(1))
        self.ledger.add(phase, self.costs[key], examples)


def _gradients(root: Tensor, tensors: Sequence[Tensor], along: Tensor | None = None) -> list[Tensor]:
    """For each tensor; ``along``: where ``root`` is not a single number, the gradient of the loss at it."""
    found = torch.autograd.grad(root, tensors, along, allow_unused=True)
    return [torch.zeros_like(tensor) if g is None else g for tensor, g in zip(tensors, found, strict=True)]
