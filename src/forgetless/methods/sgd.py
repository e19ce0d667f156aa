"""Plain SGD on the stream as it comes: the lower bound, and what k-FPF builds on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class SGD(Method):
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
