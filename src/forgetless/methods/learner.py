"""Hold what a method trains with: the network, its optimizer, the buffer, augmentation and random numbers."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.engine import Engine
from forgetless.compute.flops import count, forward_flops
from forgetless.compute.modules import has_batch_norm
from forgetless.data.augment import Preparation
from forgetless.data.stream import Stream
from forgetless.memory.buffer import Buffer
from forgetless.methods.loader import batch_sizes
from forgetless.networks.mlp import backpropagates

T = TypeVar("T")


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode, and restore every module's mode on leaving."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class Batch:
    """Images before augmentation, their labels, and the number of their task (from 0)."""

    x: Tensor
    y: Tensor
    task: int


@final
class Learner:
    """Trains a network by SGD without momentum: θ ← θ − lr · (∇L + weight_decay · θ).

    The training loop constructs it. ``replay`` is the number of examples per draw from the buffer, and ``seed`` is the
    seed of augmentation and replay.
    """

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
    ) -> None:
        self.network = network
        self.engine = engine
        self.lr, self.batch, self.replay_size, self.weight_decay = lr, batch, replay, weight_decay
        self.classes, self.tasks, self.shape = stream.classes, len(stream.tasks), stream.shape
        self._seen = [1 + max(c for task in stream.tasks[: t + 1] for c in task.classes) for t in range(self.tasks)]
        self.examples = [len(task.train) for task in stream.tasks]  # training examples per task
        self.task_sizes = [len(task.classes) for task in stream.tasks]  # classes per task
        self.device = engine.device
        foreign = [[label not in task.classes for label in range(stream.classes)] for task in stream.tasks]
        self.foreign = torch.tensor(foreign, device=self.device)  # (tasks, classes): whether a class is not in a task
        self.generator = engine.generator(seed)
        self.flops: Counter[str] = Counter()  # by phase
        self.costs: dict[object, int] = {}  # FLOPs of a call, by what was called
        self.finetuned = False  # whether a repair has finetuned; from then on the output layer predicts
        self._buffer = buffer
        self._example = torch.zeros(1, *stream.shape, dtype=stream.tasks[0].train.x.dtype)
        self._prepare = Preparation(stream, engine.device, channels_last=engine.channels_last)
        self._batch_norm = has_batch_norm(network)
        # With one image per batch, batch norm would take that image's statistics for those of all images.
        self.smallest_batch = 2 if self._batch_norm else 1
        self._takes_passes = "passes" in inspect.signature(network.forward).parameters
        self.take_parameters()

    @property
    def buffer(self) -> Buffer:
        """Return the buffer; raise an error if the method declares no memory."""
        if self._buffer is None:
            raise ValueError('this method has no buffer: its memory is "none"; declare memory = "reservoir", say')
        return self._buffer

    def seen(self, task: int) -> int:
        """Return how many classes the tasks up to this one have. Tasks count from 0; for −1 the result is 0."""
        return self._seen[task] if task >= 0 else 0

    def within_task(self, logits: Tensor, task: int) -> Tensor:
        """Return the logits with −∞ for classes outside the task, so that no gradient reaches them."""
        return logits.masked_fill(self.foreign[task], -torch.inf)

    def take_parameters(self) -> None:
        """Train the parameters that require gradients now."""
        self._trains = [parameter.requires_grad for parameter in self.network.parameters()]
        self.parameters: list[Tensor] = self.trained(list(self.network.parameters()))

    def trained(self, values: Sequence[T]) -> list[T]:
        """Return those of ``values``, one for each parameter of the network, whose parameters are trained."""
        return [value for value, trains in zip(values, self._trains, strict=True) if trains]

    def augment(self, x: Tensor) -> Tensor:
        """Return images as inputs for training."""
        return self._prepare.augmented(x, self.generator)

    def automatic_pad(self) -> int:
        """Return the width of a repair's crops unless it is given: an eighth of the side, as is usual for CIFAR-10.

        Crops help because a repair sees the few images of the buffer many times. Return 0 if training already crops,
        and for a network without 2-D convolutions, which does not recognise a shifted image.
        """
        convolutional = any(isinstance(module, nn.Conv2d) for module in self.network.modules())
        crops = convolutional and len(self.shape) == 3 and not self._prepare.crops
        return min(self.shape[-2:]) // 8 if crops else 0

    def augmenting(self, pad: int | str) -> Callable[[Tensor], Tensor]:
        """Return ``augment`` for a finetuning; if ``pad`` is not 0, it crops with mirrored edges of that width.

        ``"auto"`` stands for ``automatic_pad()``.
        """
        width = self.automatic_pad() if isinstance(pad, str) else pad
        if not width:
            return self.augment
        prepare = self._prepare.cropping(width)
        return lambda x: prepare.augmented(x, self.generator)

    def plain(self, x: Tensor) -> Tensor:
        """Return images as inputs for testing."""
        return self._prepare.plain(x.to(self.device, non_blocking=True))

    def zero_inputs(self, examples: int) -> Tensor:
        """Return a batch of zero images as inputs on the CPU, for counting FLOPs."""
        return self.plain(self._example.expand(examples, *self.shape)).cpu()

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output for inputs, in the run's precision."""
        return self.engine.forward(self.network, x)

    def forward_each(self, *images: Tensor) -> tuple[Tensor, ...]:
        """Return the network's outputs for several batches of images, augmented, each as its own forward pass.

        They are computed in one call where the result is the same: for a network without batch norm, and for one whose
        ``forward`` takes ``passes`` and computes batch statistics per pass, as ``ResNet`` does.
        """
        sizes = [len(part) for part in images]
        together = not self._batch_norm or (self._takes_passes and len(set(sizes)) == 1)
        if len(images) == 1 or not together:
            return tuple(self.forward(self.augment(part)) for part in images)
        x = self.augment(torch.cat(images))
        arguments = {"passes": len(images)} if self._batch_norm else {}
        outputs: tuple[Tensor, ...] = self.engine.forward(self.network, x, **arguments).split(sizes)
        return outputs

    def batches(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return rows in batches, without a last batch that is too small."""
        sizes = batch_sizes(len(rows), self.batch, self.smallest_batch)
        parts: tuple[Tensor, ...] = rows[: sum(sizes)].split(sizes)
        return parts

    def recall(self, size: int | None = None) -> dict[str, Tensor]:
        """Return examples drawn from the buffer without replacement, as they are stored."""
        return self.buffer.draw(size or self.replay_size, self.generator)

    def replay(self, size: int | None = None) -> dict[str, Tensor]:
        """Return examples drawn from the buffer without replacement, with their images augmented again."""
        rows = self.recall(size)
        rows["x"] = self.augment(rows["x"])
        return rows

    def gradients(self, loss: Tensor, extra: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the gradient of a loss for each trained parameter, then for each tensor of ``extra``."""
        tensors = [*self.parameters, *extra]
        gradients = torch.autograd.grad(loss, tensors, allow_unused=True)
        return [torch.zeros_like(tensor) if g is None else g for tensor, g in zip(tensors, gradients, strict=True)]

    @torch.no_grad()
    def descend(
        self, gradients: Sequence[Tensor], lr: float | Tensor | None = None, scale: Sequence[Tensor] | None = None
    ) -> None:
        """Take one step of SGD along these gradients.

        Args:
            gradients: One gradient for each trained parameter.
            lr: Another learning rate. A tensor on the GPU may change between replays.
            scale: Factors of the moves, including weight decay. Where they are 0, a parameter keeps its bits.
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
            torch._foreach_add_(self.parameters, moves, alpha=-rate)

    def update(self, loss: Tensor, lr: float | Tensor | None = None) -> None:
        """Take one step of SGD on a loss."""
        self.descend(self.gradients(loss), lr)

    def step_on(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Take one step of SGD on the cross-entropy of inputs, and return the loss and the logits."""
        if backpropagates(self.network, self.engine):
            loss, logits, gradients = self.network.backpropagate(x, y)
            self.descend(gradients)
            return loss, logits
        logits = self.forward(x)
        loss = F.cross_entropy(logits, y)
        self.update(loss)
        return loss.detach(), logits.detach()

    def run_counted(self, phase: str, key: object, call: Callable[[], T]) -> T:
        """Run ``call`` and add its FLOPs, counted in the first call with this phase and key, to those of the phase."""
        results: list[T] = []
        if (phase, key) in self.costs:
            results.append(call())
        else:
            self.costs[phase, key] = count(lambda: results.append(call()))
        self.flops[phase] += self.costs[phase, key]
        return results[0]

    def spend(self, phase: str, examples: int, *, backward: bool = False) -> None:
        """Add the FLOPs of ``examples`` forward passes to a phase; with ``backward``, nominally 3 × forward each."""
        if "example" not in self.costs:
            with evaluating(self.network):  # in training mode batch norm refuses one example of one pixel
                self.costs["example"] = forward_flops(self.network, self.zero_inputs(1))
        self.flops[phase] += examples * self.costs["example"] * (3 if backward else 1)
