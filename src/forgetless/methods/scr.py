"""Supervised contrastive replay (Mai et al. 2021): examples of a class attract each other, others repel.

    L = mean over i of  −1/|P(i)| Σ_{p ∈ P(i)} log [exp(z_i · z_p / τ) / Σ_{a ≠ i} exp(z_i · z_a / τ)]

i, p and a are views: the batch and examples from a reservoir, each once as it is and once augmented, in one forward
pass. P(i) are the other views of i's class. z is a projection of the features to length 1, by a head of two linear
layers with a ReLU between them, which only training uses. The authors replay 100 examples per batch of 10.

The predicted class is the one whose mean of stored features is nearest; features and means have length 1. The loss
never trains the output layer. After a finetune (FPF), which does, the output layer predicts, as in iCaRL.

Deviations: the augmentation is the stream's own, whereas the authors also resize crops and jitter colours. On a stream
without augmentation both views are equal. A class without stored examples is never predicted; the authors draw a random
mean for it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.icarl import check_features, class_means, nearest_mean
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method

PROJECTION = 128  # dimensions of z, as in the authors' code


@final
@dataclass
class SCR(Method):
    """Train features by a contrastive loss on the batch and replayed examples; classify by the nearest class mean."""

    memory: ClassVar[str] = "reservoir"
    temperature: float = setting(0.07, "Temperature τ of the contrastive loss.", above=0)

    def begin(self, learner: Learner) -> None:
        check_features(learner, "scr")
        with torch.no_grad(), evaluating(learner.network):
            width = _Features(learner.network)(learner.zero_inputs(2).to(learner.device)).shape[1]
        self.head = initial_head(width, learner.generator)  # weight, bias, weight, bias
        self.means: Tensor | None = None  # (classes, features) after the latest task

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = batch.x, batch.y
        if len(learner.buffer):
            old = learner.recall()
            x, y = torch.cat([x, old["x"]]), torch.cat([y, old["y"]])
        views = torch.cat([learner.plain(x), learner.augment(x)])

        leaves = [tensor.detach().requires_grad_() for tensor in self.head]
        z = project(learner.engine.forward(_Features(learner.network), views), leaves)
        loss = contrastive_loss(z, torch.cat([y, y]), self.temperature)

        gradients = learner.gradients(loss, leaves)
        count = len(learner.parameters)
        learner.descend(gradients[:count])
        for tensor, gradient in zip(self.head, gradients[count:], strict=True):
            tensor.sub_(learner.lr * (gradient + learner.weight_decay * tensor))
        return loss.detach(), {}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        self.means = class_means(learner)
        learner.spend("memory", len(learner.buffer))

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        if self.means is None or learner.finetuned:
            return learner.forward(x)
        return nearest_mean(learner, x, self.means)


@final
class _Features(nn.Module):
    """A network without its output layer, so that the engine can compute features in the run's precision."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.features(x)  # type: ignore[operator, no-any-return]


def initial_head(width: int, generator: torch.Generator) -> list[Tensor]:
    """Return weights and biases of layers ``width`` → ``width`` → ``PROJECTION``, with PyTorch's default bounds."""
    shapes = ((width, width), (width,), (PROJECTION, width), (PROJECTION,))
    uniform = [torch.rand(shape, generator=generator, device=generator.device) for shape in shapes]
    return [(2 * values - 1) / math.sqrt(width) for values in uniform]


def project(x: Tensor, head: Sequence[Tensor]) -> Tensor:
    """Return the projection of features by a head, scaled to length 1."""
    weight, bias, last_weight, last_bias = head
    return F.normalize(F.linear(F.linear(x, weight, bias).relu(), last_weight, last_bias))


def contrastive_loss(z: Tensor, y: Tensor, temperature: float) -> Tensor:
    """Return the supervised contrastive loss (Khosla et al. 2020) of vectors of length 1 with these labels.

    Every label must occur at least twice.
    """
    itself = torch.eye(len(y), dtype=torch.bool, device=y.device)
    positive = (y[:, None] == y) & ~itself
    log_shares = (z @ z.T / temperature).masked_fill(itself, -torch.inf).log_softmax(1)
    return -(log_shares.masked_fill(~positive, 0.0).sum(1) / positive.sum(1)).mean()
