"""SGD on all tasks at once, shuffled: the upper bound. As many epochs over the whole as a task has elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class Joint(Method):
    joint: ClassVar[bool] = True
    tells_sensitivity: ClassVar[bool] = False

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
