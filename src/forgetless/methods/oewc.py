"""Online elastic weight consolidation (Schwarz et al. 2018).

    L = CE + λ Σ_j F_j (θ_j − θ*_j)²            (without ½, as in the DER authors' code)

After a task: F ← γ F + F_task and θ* ← θ, with the diagonal F_task = E[p(y|x) · (∂ log p(y|x) / ∂θ)²] over its
examples and labels. Deviations: gradients of single examples are computed with batch norm in evaluation mode. They can
be limited to ``fisher_examples`` of a task, since each one needs memory for a full gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.importance import add_penalty, copy_like, example_count, mean_over_task
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class OnlineEWC(Method):
    """Penalise moving weights with a large Fisher information."""

    penalty: float = setting(10.0, "Weight λ of the penalty.", least=0)
    gamma: float = setting(1.0, "Factor γ on the Fisher information of earlier tasks.", least=0)
    fisher_examples: int = setting(0, "Number of examples per task for the Fisher information; 0 for all.", least=0)
    covered: list[Tensor] = field(default_factory=list, init=False, repr=False)  # the parameters with a penalty
    fisher: list[Tensor] = field(default_factory=list, init=False, repr=False)
    anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def begin(self, learner: Learner) -> None:
        self.covered, self.fisher, self.anchor = [], [], []

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        loss = add_penalty(loss, self.penalty, self.covered, self.fisher, self.anchor)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        new = fisher_information(learner, task, self.fisher_examples)
        old = {id(parameter): value for parameter, value in zip(self.covered, self.fisher, strict=True)}
        self.covered = list(learner.parameters)  # fewer than before once a group is frozen
        self.fisher = [
            self.gamma * old[id(parameter)] + value if id(parameter) in old else value
            for parameter, value in zip(self.covered, new, strict=True)
        ]
        self.anchor = [parameter.detach().clone() for parameter in self.covered]
        learner.spend("consolidate", example_count(self.fisher_examples, task), backward=True)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        names = {id(parameter): name for name, parameter in learner.network.named_parameters()}
        covered = [names[id(parameter)] for parameter in self.covered]
        return {"covered": covered, "fisher": list(self.fisher), "anchor": list(self.anchor)}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        parameters = dict(learner.network.named_parameters())
        self.covered = [parameters[name] for name in state["covered"]]
        self.fisher = copy_like(self.covered, state["fisher"])
        self.anchor = copy_like(self.covered, state["anchor"])


def fisher_information(learner: Learner, task: Task, examples: int) -> list[Tensor]:
    """Return E[p(y|x) · (∂ log p(y|x) / ∂θ)²] over examples of a task, for each trained parameter."""

    def weighted(gradients: Tensor, values: Tensor) -> Tensor:
        return torch.einsum("e,e...->...", values.exp(), gradients.square())

    return mean_over_task(learner, task, examples, lambda logits, y: -F.cross_entropy(logits, y), weighted)
