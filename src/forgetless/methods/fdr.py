"""Function distance regularisation (Benjamin et al. 2019).

    L = CE(batch) + α · E ‖softmax f(x) − softmax z‖₂

x is drawn from the memory, z are its outputs at the end of its task. The memory holds equal shares of all tasks seen.

As in the DER authors' code, z comes from a pass in training mode: images are augmented, and batch norm uses the
statistics of the batch. In evaluation mode z would be wrong, since the running statistics lie between those of new and
of stored images. Deviation: these passes do not move the running statistics towards the new images.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.layers import training_outputs
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step


@final
@dataclass
class FDR(Method):
    """Keep the class probabilities of stored examples as they were at the end of their task."""

    memory: ClassVar[str] = "own"
    columns: ClassVar[tuple[str, ...]] = ("logits", "task")
    alpha: float = setting(0.3, "Weight α of the distance to the stored outputs.", least=0)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            return sgd_step(learner, batch)
        old = learner.recall()
        logits, old_logits = learner.forward_each(batch.x, old["x"])
        distances = torch.linalg.vector_norm(old_logits.softmax(1) - old["logits"].softmax(1), dim=1)
        loss = F.cross_entropy(logits, batch.y) + self.alpha * distances.mean()
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = max(1, learner.buffer.capacity // (number + 1))
        new = task.train.sample(share, learner.generator)
        logits = training_outputs(learner, new.x)
        learner.spend("memory", len(new))
        rows = {"x": new.x, "y": new.y, "logits": logits, "task": torch.full_like(new.y, number)}
        if len(learner.buffer):
            tasks = learner.buffer["task"]
            keep = torch.cat([(tasks == earlier).nonzero()[:share, 0] for earlier in range(number)])
            rows = {name: torch.cat([learner.buffer[name][keep], column]) for name, column in rows.items()}
        learner.buffer.replace({name: column[: learner.buffer.capacity] for name, column in rows.items()})
