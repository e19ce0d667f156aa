"""Dark experience replay (Buzzega et al. 2020).

L = CE(batch) + α · MSE(f(x'), z'),   x' and its logits z' at training time drawn from a reservoir; two forward passes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor

from forgetless.learner import Batch, Learner
from forgetless.methods.method import Method, setting


@final
@dataclass
class DER(Method):
    memory: ClassVar[str] = "reservoir"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = setting(0.3, "α, weight of the distance to the stored logits")

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.network(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        if len(learner.buffer):
            old = learner.replay()
            loss = loss + self.alpha * F.mse_loss(learner.network(old["x"]), old["logits"])
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
