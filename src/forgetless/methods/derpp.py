"""DER++ (Buzzega et al. 2020).

    L = CE(batch) + α · MSE(f(x'), z') + β · CE(f(x''), y'')

(x', z') and (x'', y'') are independent draws from a reservoir, z' the logits when x' was stored. Three forward passes.
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
class DERpp(Method):
    """Match the stored logits and the labels of examples from the buffer."""

    memory: ClassVar[str] = "reservoir"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    alpha: float = setting(0.1, "Weight α of the distance to the stored logits.", least=0)
    beta: float = setting(0.5, "Weight β of the loss on the stored labels.", least=0)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if not len(learner.buffer):
            return sgd_step(learner, batch)
        loss, logits = derpp_loss(learner, batch, self.alpha, self.beta)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}


def derpp_loss(learner: Learner, batch: Batch, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Return the loss of DER++ with two draws from the buffer, and the logits of the batch."""
    dark, labelled = learner.recall(), learner.recall()
    logits, dark_logits, labelled_logits = learner.forward_each(batch.x, dark["x"], labelled["x"])
    loss = F.cross_entropy(logits, batch.y)
    loss = loss + alpha * F.mse_loss(dark_logits, dark["logits"])
    loss = loss + beta * F.cross_entropy(labelled_logits, labelled["y"])
    return loss, logits
