"""Plain SGD on the stream as it comes: the lower bound, and what k-FPF builds on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class SGD(Method):
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        loss, logits = learner.fit(learner.augment(batch.x), batch.y)
        return loss, {"logits": logits}
