"""Online elastic weight consolidation (Schwarz et al. 2018).

    L = CE + λ Σ_j F_j (θ_j − θ*_j)²            (without ½, as in the DER authors' code)

After a task: F ← γ F + F_task and θ* ← θ, with the diagonal F_task = E[p(y|x) · (∂ log p(y|x) / ∂θ)²] over its
examples and labels. Deviations: gradients of single examples are computed with batch norm in evaluation mode. They can
be limited to ``fisher_examples`` of a task, since each one needs memory for a full gradient.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.importance import mean_over_task, penalised_step
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class OnlineEWC(Method):
    """Penalise moving weights with a large Fisher information."""

    penalty: float = setting(10.0, "Weight λ of the penalty.", least=0)
    gamma: float = setting(1.0, "Factor γ on the Fisher information of earlier tasks.", least=0)
    fisher_examples: int = setting(0, "Number of examples per task for the Fisher information; 0 for all.", least=0)

    def begin(self, learner: Learner) -> None:
        self.anchor = [parameter.detach().clone() for parameter in learner.network.parameters()]  # θ*
        self.fisher = [torch.zeros_like(place) for place in self.anchor]  # F of each parameter

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return penalised_step(learner, batch, self.penalty, self.fisher, self.anchor)

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        fisher = learner.trained(self.fisher)
        torch._foreach_mul_(fisher, self.gamma)
        torch._foreach_add_(fisher, fisher_information(learner, task, self.fisher_examples))
        torch._foreach_copy_(self.anchor, list(learner.network.parameters()))


def fisher_information(learner: Learner, task: Task, examples: int) -> list[Tensor]:
    """Return E[p(y|x) · (∂ log p(y|x) / ∂θ)²] over examples of a task, for each trained parameter."""

    def weighted(gradients: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("e,e...->...", values.exp(), gradients.square())

    return mean_over_task(learner, task, examples, lambda logits, y: -F.cross_entropy(logits, y), weighted)
