"""SGD on all tasks at once, shuffled: the upper bound. As many epochs over the whole as a task has elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class Joint(Method):
    joint: ClassVar[bool] = True
    tells_sensitivity: ClassVar[bool] = False

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logits = learner.fit(learner.augment(batch.x), batch.y)
        return loss, {"logits": logits}
