"""iCaRL (Rebuffi et al. 2017): herded exemplars, distillation from the former network, nearest mean of exemplars.

    L = BCE(f(x), t) over the classes seen; t is one-hot for the classes of this task and, from the second task on, the
        sigmoid of the former network's outputs for the older ones; x the batch and a batch of exemplars in one pass

Prediction: the class whose exemplars' mean feature is nearest, features and means of length 1. Once the network has
been finetuned (FPF), its own output layer predicts: finetuning the output layer would otherwise change nothing.
The former network is in evaluation mode. Deviations from the DER authors' code: they mix the exemplars into the task's
images, here a batch of them is drawn at each step; and their weight decay adds w · ‖θ‖² to the loss, here (as for all
methods) the gradient is w · θ, half of theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.data.stream import Split, Task
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method
from forgetless.repair.buffer import herd


@final
@dataclass
class ICaRL(Method):
    memory: ClassVar[str] = "own"
    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    former: nn.Module | None = field(default=None, init=False, repr=False)  # the network before this task
    means: Tensor | None = field(default=None, init=False, repr=False)  # (classes, features), until the network moves

    def begin(self, learner: Learner) -> None:
        self.former = self.means = None  # also after another run
        if not callable(getattr(learner.network, "features", None)):
            raise ValueError(f"icarl needs a network with features(x); {type(learner.network).__name__} has none")
        if learner.buffer.capacity < learner.classes:
            raise ValueError(
                f"buffer is {learner.buffer.capacity}; icarl keeps as many exemplars of each class, so with "
                f"{learner.classes} classes it must be {learner.classes} or more"
            )
        for label, foreign in enumerate(learner.foreign.T.tolist()):
            if foreign.count(False) > 1:
                tasks = ", ".join(str(number) for number, other in enumerate(foreign, 1) if not other)
                raise ValueError(f"icarl takes a class's exemplars from one task; class {label} is in tasks {tasks}")
        numbered = (~learner.foreign).cumsum(0).clamp(max=1).sum(1).tolist()
        if numbered != [learner.seen(task) for task in range(learner.tasks)]:
            raise ValueError(
                "icarl needs classes numbered in the order of the tasks, the first task's from 0 on, as "
                "forgetless.data.builders.from_tensors numbers them"
            )

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
                before = learner.engine.forward(self.former, x).sigmoid()
            targets = torch.cat([before[:, :known], targets[:, known:]], 1)
        loss = F.binary_cross_entropy_with_logits(logits[:, :seen], targets[:, :seen])
        learner.update(loss)
        return loss.detach(), {"logits": logits[: len(batch.y)].detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = learner.buffer.capacity // learner.seen(number)
        kept = [Split(learner.buffer["x"], learner.buffer["y"])] if len(learner.buffer) else []
        older = [split.subset((split.y == c).nonzero()[:share, 0]) for split in kept for c in split.y.unique().tolist()]
        fresh = []
        for c in task.classes:
            split = task.train.subset((task.train.y == c).nonzero()[:, 0])
            fresh.append(split.subset(herd(features(learner, split.x), min(share, len(split)))))
        parts = older + fresh
        learner.buffer.replace({"x": torch.cat([p.x for p in parts]), "y": torch.cat([p.y for p in parts])})
        learner.spend("memory", len(task.train))
        self.former = copy.deepcopy(learner.network).eval().requires_grad_(False)
        self.means = None

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"former": None if self.former is None else dict(self.former.state_dict())}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        self.former = self.means = None
        if state["former"] is not None:
            self.former = copy.deepcopy(learner.network).eval().requires_grad_(False)
            self.former.load_state_dict(state["former"])

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        if not len(learner.buffer) or learner.finetuned:
            return learner.forward(x)
        if self.means is None:
            exemplars = features(learner, learner.buffer["x"])
            of_class = exemplars.new_zeros(len(exemplars), learner.classes)
            of_class.scatter_(1, learner.buffer["y"][:, None], 1.0)
            sums = of_class.T @ exemplars
            self.means = F.normalize(sums)
        distances = torch.cdist(of_length_one(learner.network, x), self.means)
        return -distances.masked_fill(~self.means.any(1), torch.inf)  # classes without exemplars


@torch.no_grad()
def features(learner: Learner, x: Tensor) -> Tensor:
    """Of images, in evaluation mode."""
    with evaluating(learner.network):
        return torch.cat([of_length_one(learner.network, learner.plain(part)) for part in x.split(500)])


def of_length_one(network: nn.Module, x: Tensor) -> Tensor:
    """What the output layer sees, by the network's own ``features``, each scaled to length 1."""
    return F.normalize(network.features(x))  # type: ignore[operator]
