"""ER-ACE: experience replay with asymmetric cross-entropy (Caccia et al. 2022).

    L = CE(f(x) over the classes in the batch, y) + CE(f(x') over the classes seen so far, y')

(x, y) is the batch, and (x', y') is drawn from a reservoir. Classes that a softmax leaves out get no gradient. New
classes therefore do not push old ones away; the replayed examples alone compare the two. Two forward passes.

This is the formula of the paper. It depends neither on the numbers of the classes nor, in the first softmax, on the
boundaries of tasks. The authors' code also has the classes of future tasks in both softmaxes. Mammoth's code masks and
replays only from the second task on. Here the classes seen are those of all tasks so far, and the first step, which has
nothing to replay, is plain SGD.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step


@final
@dataclass
class ERACE(Method):
    """Compare the batch's classes only with each other, and all classes only on replayed examples."""

    memory: ClassVar[str] = "reservoir"

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            return sgd_step(learner, batch)
        old = learner.recall()
        logits, old_logits = learner.forward_each(batch.x, old["x"])
        absent = torch.ones_like(learner.foreign[0]).index_fill(0, batch.y, False)
        unseen = learner.foreign[: batch.task + 1].all(0)
        loss = F.cross_entropy(logits.masked_fill(absent, -torch.inf), batch.y)
        loss = loss + F.cross_entropy(old_logits.masked_fill(unseen, -torch.inf), old["y"])
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
