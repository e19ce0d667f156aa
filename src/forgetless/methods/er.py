"""Experience replay (Riemer et al. 2019) with a reservoir.

    L = CE(batch ∪ B),   B drawn from the buffer

Batch and replayed examples share one forward pass, so batch norm sees both.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class ER(Method):
    """Train on the batch together with examples from the buffer."""

    memory: ClassVar[str] = "reservoir"

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = batch.x, batch.y
        if len(learner.buffer):
            old = learner.recall()
            x, y = torch.cat([x, old["x"]]), torch.cat([y, old["y"]])
        loss, logits = learner.step_on(learner.augment(x), y)
        return loss, {"logits": logits[: len(batch.y)]}
