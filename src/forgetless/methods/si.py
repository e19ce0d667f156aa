"""Synaptic intelligence (Zenke et al. 2017).

    L = CE + c Σ_j Ω_j (θ_j − θ*_j)²

In each step ω ← ω − g · Δθ; g is the gradient of the cross-entropy alone and Δθ the move of the weight.
After a task: Ω ← Ω + max(0, ω / (Δ² + ξ)), θ* ← θ and ω ← 0; Δ is the move of the weight over the task. The maximum
keeps weights from being pushed away from θ*. As in the paper, g is the noisy gradient of the batch. A finetune (k-FPF)
counts in Δ, since it moves the weights, but not in ω, since it is not a step of the method.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.importance import add_penalty
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class SI(Method):
    """Penalise moving weights whose moves lowered the loss most."""

    c: float = setting(0.5, "Weight c of the penalty.", least=0)
    xi: float = setting(1.0, "Damping ξ, which keeps the importance of weights that hardly move finite.", above=0)

    def begin(self, learner: Learner) -> None:
        self.anchor = [parameter.detach().clone() for parameter in learner.network.parameters()]  # θ*, at the start
        self.importance = [torch.zeros_like(place) for place in self.anchor]  # Ω of each parameter
        self.path = [torch.zeros_like(place) for place in self.anchor]  # ω

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        entropy = F.cross_entropy(logits, batch.y)
        gradients = learner.gradients(entropy)
        importance, anchor = learner.trained(self.importance), learner.trained(self.anchor)
        with torch.no_grad():
            loss = add_penalty(entropy, self.c, learner.parameters, importance, anchor)
            before = [parameter.clone() for parameter in learner.parameters]
            pull = torch._foreach_mul(importance, torch._foreach_sub(before, anchor))  # the penalty's gradient / 2c
            learner.descend(torch._foreach_add(gradients, pull, alpha=2 * self.c))
            moves = torch._foreach_sub(learner.parameters, before)
            torch._foreach_addcmul_(learner.trained(self.path), gradients, moves, value=-1)
        return loss.detach(), {"logits": logits.detach()}

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        tensors = zip(learner.network.parameters(), self.path, self.importance, self.anchor, strict=True)
        for parameter, path, importance, anchor in tensors:
            importance += (path / ((parameter - anchor).square() + self.xi)).clamp(min=0)
            anchor.copy_(parameter)
            path.zero_()
