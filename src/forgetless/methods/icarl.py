"""iCaRL (Rebuffi et al. 2017): herded exemplars, distillation from the former network, nearest mean of exemplars.

    L = BCE(f(x), t) over the classes seen

t is one-hot for the classes of this task; for older classes it is the sigmoid of the former network's outputs. x is the
batch and a batch of exemplars in one pass. The former network is in evaluation mode.

The predicted class is the one whose mean of exemplar features is nearest; features and means have length 1. After a
finetune (FPF) the output layer predicts, since a finetuned output layer would otherwise change nothing.

Deviations from the DER authors' code: they mix the exemplars into the task's images; here each step draws a batch of
them. Their weight decay adds w · ‖θ‖² to the loss; here, as for all methods, its gradient is w · θ, half of theirs.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.data.stream import Split, Task
from forgetless.memory.slots import herd
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method


@final
@dataclass
class ICaRL(Method):
    """Distil from the former network and classify by the nearest mean of exemplars."""

    memory: ClassVar[str] = "own"
    scenarios: ClassVar[tuple[str, ...]] = ("class",)

    def begin(self, learner: Learner) -> None:
        self.former: nn.Module | None = None  # the network before this task
        self.means: Tensor | None = None  # (classes, features), until the network moves
        check_features(learner, "icarl")
        check_exemplars(learner, "icarl")

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        self.means = None
        known, seen = learner.seen(batch.task - 1), learner.seen(batch.task)
        x, y = batch.x, batch.y
        if len(learner.buffer):
            old = learner.recall()
            x, y = torch.cat([x, old["x"]]), torch.cat([y, old["y"]])
        x = learner.augment(x)
        logits = learner.forward(x)
        targets = torch.zeros_like(logits).scatter_(1, y[:, None], 1.0)
        if self.former is not None:
            with torch.no_grad():
                former = learner.engine.forward(self.former, x).sigmoid()
            targets = torch.cat([former[:, :known], targets[:, known:]], 1)
        loss = F.binary_cross_entropy_with_logits(logits[:, :seen], targets[:, :seen])
        learner.update(loss)
        return loss.detach(), {"logits": logits[: len(batch.y)].detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = learner.buffer.capacity // learner.seen(number)
        exemplars = []
        if len(learner.buffer):
            stored = Split(learner.buffer["x"], learner.buffer["y"])
            rows = [(stored.y == label).nonzero()[:share, 0] for label in stored.y.unique().tolist()]
            exemplars.append(stored.subset(torch.cat(rows)))
        for label in task.classes:
            examples = task.train.where(task.train.y == label)
            exemplars.append(examples.subset(herd(features(learner, examples.x), min(share, len(examples)))))
        x, y = torch.cat([split.x for split in exemplars]), torch.cat([split.y for split in exemplars])
        learner.buffer.replace({"x": x, "y": y})
        learner.spend("memory", len(task.train))
        self.former = _frozen_copy(learner.network)
        self.means = None

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"former": None if self.former is None else dict(self.former.state_dict())}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        self.former = self.means = None
        if state["former"] is not None:
            self.former = _frozen_copy(learner.network)
            self.former.load_state_dict(state["former"])

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        if not len(learner.buffer) or learner.finetuned:
            return learner.forward(x)
        if self.means is None:
            self.means = class_means(learner)
        return nearest_mean(learner, x, self.means)


def _frozen_copy(network: nn.Module) -> nn.Module:
    return copy.deepcopy(network).eval().requires_grad_(False)


def check_features(learner: Learner, method: str) -> None:
    """Raise ``ValueError`` for a network that cannot return the inputs of its output layer."""
    if not callable(getattr(learner.network, "features", None)):
        raise ValueError(f"{method} needs a network with features(x); {type(learner.network).__name__} has none")


def check_exemplars(learner: Learner, method: str) -> None:
    """Raise ``ValueError`` if the buffer has no place for every class, or if classes are not in the order of tasks."""
    if learner.buffer.capacity < learner.classes:
        needed = f"with {learner.classes} classes {method} needs {learner.classes} or more"
        raise ValueError(f"buffer is {learner.buffer.capacity}; {needed}, an equal number of exemplars per class")
    labels = (~learner.foreign).nonzero()[:, 1].tolist()  # of all tasks in a row
    if labels != list(range(len(labels))):
        raise ValueError(
            f"{method} needs every class in one task only, and classes numbered in the order of the tasks, as by "
            f"forgetless.data.builders.from_tensors; the classes of the tasks in a row are {labels}"
        )


def class_means(learner: Learner) -> Tensor:
    """Return the mean features of the stored examples of each class, of length 1, or 0 for a class without any."""
    exemplars = features(learner, learner.buffer["x"])
    one_hot = exemplars.new_zeros(len(exemplars), learner.classes)
    one_hot.scatter_(1, learner.buffer["y"][:, None], 1.0)
    return F.normalize(one_hot.T @ exemplars)


def nearest_mean(learner: Learner, x: Tensor, means: Tensor) -> Tensor:
    """Return scores of all classes: the negative distance to their mean, −∞ for classes without examples."""
    distances = torch.cdist(unit_features(learner.network, x), means)
    return -distances.masked_fill(~means.any(1), torch.inf)


@torch.no_grad()
def features(learner: Learner, x: Tensor) -> Tensor:
    """Return the features of images in evaluation mode, scaled to length 1."""
    with evaluating(learner.network):
        return torch.cat([unit_features(learner.network, learner.plain(part)) for part in x.split(500)])


def unit_features(network: nn.Module, x: Tensor) -> Tensor:
    """Return the inputs of the output layer, ``network.features(x)``, scaled to length 1."""
    return F.normalize(network.features(x))  # type: ignore[operator]
