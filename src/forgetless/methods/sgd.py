"""Plain SGD on the stream: the lower bound, and what k-FPF builds on.

L = CE(batch)
"""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class SGD(Method):
    """Train on every batch once, without a buffer."""

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return sgd_step(learner, batch)


def sgd_step(learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """Take one step of SGD along the cross-entropy of a batch."""
    loss, logits = learner.step_on(learner.augment(batch.x), batch.y)
    return loss, {"logits": logits}
