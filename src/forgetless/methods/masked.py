"""SGD whose loss covers only the current task's classes (the labels trick, Zeno et al. 2018).

    L = − log softmax(f(x) restricted to the classes of the task)[y]

Plain cross-entropy also lowers the scores of all classes outside the task, and k-FPF-KD would distil these scores from
the stored logits. Here no gradient reaches them. On its own, the method never compares classes of different tasks and
forgets like plain SGD; with k-FPF-KD it did best on Seq-CIFAR-10 (docs/findings.md). If all tasks have the same
classes, it is plain SGD. On a task of a single class, where the loss above is always 0, it is plain SGD, too.
"""

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class Masked(Method):
    """Train on every batch once, with a loss over the classes of its task."""

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        single = learner.task_sizes[batch.task] == 1
        loss = F.cross_entropy(logits if single else learner.within_task(logits, batch.task), batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
