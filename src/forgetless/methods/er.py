"""Experience replay (Riemer et al. 2019) with a reservoir.

L = CE over the batch and a batch drawn from the buffer, in one forward pass, so that batch norm sees both
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class ER(Method):
    memory: ClassVar[str] = "reservoir"

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = batch.x, batch.y
        if len(learner.buffer):
            old = learner.recall()
            x, y = torch.cat([x, old["x"]]), torch.cat([y, old["y"]])
        logits = learner.forward(learner.augment(x))
        loss = F.cross_entropy(logits, y)
        learner.update(loss)
        return loss.detach(), {"logits": logits[: len(batch.y)].detach()}
