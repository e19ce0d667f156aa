"""Function distance regularisation (Benjamin et al. 2019).

    L = CE(batch) + α · E ‖softmax f(x) − softmax z‖₂,   x and z drawn from the memory, z its outputs when its task
    ended

The memory holds equal shares of all tasks seen. Its outputs are those of a training pass, as in the DER authors' code:
images augmented, batch norm with the statistics of each batch. In evaluation mode they would be wrong: the running
statistics are between those of new and of stored images, which are trained on apart. Where the authors' passes move
these statistics towards the new images, at the cost of the old ones, they stay here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.learner import Batch, Learner, evaluating, statistics_kept
from forgetless.methods.method import Method, sample


@final
@dataclass
class FDR(Method):
    memory: ClassVar[str] = "own"
    columns: ClassVar[tuple[str, ...]] = ("logits", "task")
    alpha: float = setting(0.3, "α, weight of the distance to the stored outputs", least=0)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if len(learner.buffer):
            old = learner.recall()
            logits, of_old = learner.passes(batch.x, old["x"])
            loss = F.cross_entropy(logits, batch.y) + self.alpha * function_distance(of_old, old["logits"])
        else:
            logits = learner.forward(learner.augment(batch.x))
            loss = F.cross_entropy(logits, batch.y)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = max(1, learner.buffer.capacity // (number + 1))
        new = sample(task.train, share, learner)
        parts = new.x.to(learner.device).tensor_split(max(1, len(new) // learner.batch))
        as_trained = statistics_kept if len(new) >= learner.least else evaluating
        with as_trained(learner.network):
            logits = torch.cat([learner.forward(learner.augment(part)) for part in parts])
        learner.spend("memory", len(new))
        rows = {"x": new.x, "y": new.y, "logits": logits, "task": torch.full_like(new.y, number)}
        if len(learner.buffer):
            held = learner.buffer["task"]
            keep = torch.cat([(held == t).nonzero()[:share, 0] for t in range(number)])
            rows = {name: torch.cat([learner.buffer[name][keep], column]) for name, column in rows.items()}
        learner.buffer.replace({name: column[: learner.buffer.capacity] for name, column in rows.items()})


def function_distance(outputs: Tensor, stored: Tensor) -> Tensor:
    distance: Tensor = torch.linalg.vector_norm(outputs.softmax(1) - stored.softmax(1), dim=1).mean()
    return distance
