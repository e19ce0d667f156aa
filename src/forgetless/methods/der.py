"""Dark experience replay (Buzzega et al. 2020).

    L = CE(batch) + α · MSE(f(x'), z')

x' is drawn from a reservoir, z' are its logits when it was stored. Two forward passes.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.methods.sgd import sgd_step


@final
@dataclass
class DER(Method):
    """Match the stored logits of examples from the buffer."""

    memory: ClassVar[str] = "reservoir"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = setting(0.3, "Weight α of the distance to the stored logits.", least=0)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            return sgd_step(learner, batch)
        old = learner.recall()
        logits, old_logits = learner.forward_each(batch.x, old["x"])
        loss = F.cross_entropy(logits, batch.y) + self.alpha * F.mse_loss(old_logits, old["logits"])
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}
