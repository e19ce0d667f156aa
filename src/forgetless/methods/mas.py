"""Memory aware synapses (Aljundi et al. 2018).

    L = CE + λ Σ_j Ω_j (θ_j − θ*_j)²

After a task: Ω ← Ω + E |∂ ‖f(x)‖² / ∂θ| over its training examples, one at a time and without their labels; θ* ← θ.
f are the outputs for all classes. Deviations, as for oEWC: gradients of single examples are computed with batch norm
in evaluation mode and can be limited to ``examples`` of a task. A finetune (FPF) moves weights away from where Ω was
measured; after k-FPF the penalty pulls them back towards θ*.
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.importance import mean_over_task, penalised_step
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class MAS(Method):
    """Penalise moving weights to which the outputs are sensitive."""

    penalty: float = setting(0.1, "Weight λ of the penalty.", least=0)
    examples: int = setting(0, "Number of examples per task for the importance; 0 for all.", least=0)

    def begin(self, learner: Learner) -> None:
        self.anchor = [parameter.detach().clone() for parameter in learner.network.parameters()]  # θ*
        self.importance = [torch.zeros_like(place) for place in self.anchor]  # Ω of each parameter

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return penalised_step(learner, batch, self.penalty, self.importance, self.anchor)

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        torch._foreach_add_(learner.trained(self.importance), output_importance(learner, task, self.examples))
        torch._foreach_copy_(self.anchor, list(learner.network.parameters()))


def output_importance(learner: Learner, task: Task, examples: int) -> list[Tensor]:
    """Return E |∂ ‖f(x)‖² / ∂θ| over examples of a task, for each trained parameter."""
    return mean_over_task(
        learner, task, examples, lambda logits, _: logits.square().sum(), lambda gradients, _: gradients.abs().sum(0)
    )
