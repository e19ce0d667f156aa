"""Averaged gradient episodic memory (Chaudhry et al. 2019).

    g ← g − min(0, g·r) / (r·r) · r

g is the gradient of the batch, r that of a batch drawn from the memory. The memory keeps capacity / tasks examples of
every task, drawn at the end of the task.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.data.stream import Task
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class AGEM(Method):
    """Remove from the gradient what would raise the loss on stored examples."""

    memory: ClassVar[str] = "own"

    def begin(self, learner: Learner) -> None:
        needed = learner.smallest_batch * learner.tasks
        if learner.buffer.capacity < needed:
            raise ValueError(
                f"buffer is {learner.buffer.capacity}; with {learner.tasks} tasks agem needs {needed} or more, an "
                f"equal share per task, since this network needs at least {learner.smallest_batch} examples per batch"
            )

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        gradients = learner.gradients(loss)
        if len(learner.buffer):
            old = learner.replay()
            reference = learner.gradients(F.cross_entropy(learner.forward(old["x"]), old["y"]))
            gradients = project(gradients, reference)
        learner.descend(gradients)
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        new = task.train.sample(learner.buffer.capacity // learner.tasks, learner.generator)
        x, y = new.x, new.y
        if len(learner.buffer):
            x, y = torch.cat([learner.buffer["x"], x]), torch.cat([learner.buffer["y"], y])
        learner.buffer.replace({"x": x, "y": y})


def project(gradients: list[Tensor], reference: list[Tensor]) -> list[Tensor]:
    """Return the nearest gradients whose product with the reference is not negative."""
    product = torch.stack([g.flatten() @ r.flatten() for g, r in zip(gradients, reference, strict=True)]).sum()
    length = torch.stack(torch._foreach_norm(reference)).square().sum()
    factor = product.clamp(max=0) / length.clamp(min=torch.finfo(length.dtype).tiny)
    return list(torch._foreach_sub(gradients, torch._foreach_mul(reference, factor)))
