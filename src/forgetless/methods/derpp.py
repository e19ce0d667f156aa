"""DER++ (Buzzega et al. 2020).

L = CE(batch) + α · MSE(f(x'), z') + β · CE(f(x''), y''),   two independent draws from a reservoir; three forward passes
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
class DERpp(Method):
    memory: ClassVar[str] = "reservoir"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = setting(0.1, "α, weight of the distance to the stored logits")
    beta: float = setting(0.5, "β, weight of the loss on the stored labels")

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.network(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        if len(learner.buffer):
            dark, labelled = learner.replay(), learner.replay()
            loss = loss + self.alpha * F.mse_loss(learner.network(dark["x"]), dark["logits"])
            loss = loss + self.beta * F.cross_entropy(learner.network(labelled["x"]), labelled["y"])
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
