"""Plain SGD on the stream: the lower bound, and what k-FPF builds on. On all tasks at once: the upper bound.

    L = CE(batch)

``Joint`` trains for the same number of epochs over all tasks as other methods train over each task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class SGD(Method):
    """Train on every batch once, without a buffer."""

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logits = learner.step_on(learner.augment(batch.x), batch.y)
        return loss, {"logits": logits}


@final
@dataclass
class Joint(Method):
    """Train on the shuffled examples of all tasks."""

    joint: ClassVar[bool] = True
    sequential: ClassVar[bool] = False

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logits = learner.step_on(learner.augment(batch.x), batch.y)
        return loss, {"logits": logits}
