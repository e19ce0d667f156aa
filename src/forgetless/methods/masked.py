"""SGD on the stream with cross-entropy among the classes of the task alone (the labels trick, Zeno et al. 2018).

    L = − log softmax(f(x) restricted to the classes of the task)[y]

Plain cross-entropy also pushes down the scores of all classes that are not in the task, and k-FPF-KD would distil that
from the logits stored meanwhile. Here no gradient reaches them. On its own it never compares classes of two tasks, and
forgets like plain SGD; with k-FPF-KD around it, it is what did best on Seq-CIFAR-10 (docs/findings.md). Where all tasks
have the same classes it is plain SGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class Masked(Method):
    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(learner.among(logits, batch.task), batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
