"""SGD on the stream with cross-entropy among the classes of the task alone (the labels trick, Zeno et al. 2018).

    L = − log softmax(f(x) restricted to the classes of the task)[y]

Plain cross-entropy also pushes down the scores of all classes that are not in the task, which is most of what it
forgets. Here no gradient reaches them: a task neither wrecks the outputs of earlier ones nor the logits that its own
images are stored with, so that k-FPF with distillation has less to repair and better targets. On its own it never
compares classes of two tasks. Where all tasks have the same classes it is plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class Masked(Method):
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(learner.among(logits, batch.task), batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
