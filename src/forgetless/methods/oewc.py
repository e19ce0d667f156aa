"""Online elastic weight consolidation (Schwarz et al. 2018).

    L = CE + λ Σ_j F_j (θ_j − θ*_j)²            (without ½, as the DER authors have it)

After a task: F ← γ F + F_task, θ* ← θ, with the diagonal F_task = E[p(y|x) · (∂ log p(y|x) / ∂θ)²] over its examples
and their labels. Deviations: gradients of single examples are taken with batch norm in evaluation mode; and, as each of
them costs the memory of a whole gradient, they can be limited to ``fisher_examples`` of a task, evenly spread over it.
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
from forgetless.methods.importance import laid_out, over_examples, penalised, used
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class OnlineEWC(Method):
    penalty: float = setting(10.0, "λ, weight of the penalty", least=0)
    gamma: float = setting(1.0, "γ, how much of the older Fisher information is kept", least=0)
    fisher_examples: int = setting(
        0, "examples of a task its Fisher information is taken over; 0: all of them", least=0
    )
    covered: list[Tensor] = field(default_factory=list, init=False, repr=False)  # the parameters of these two
    fisher: list[Tensor] = field(default_factory=list, init=False, repr=False)
    anchor: list[Tensor] = field(default_factory=list, init=False, repr=False)

    def begin(self, learner: Learner) -> None:
        self.covered, self.fisher, self.anchor = [], [], []

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(logits, batch.y)
        loss = penalised(loss, self.penalty, self.covered, self.fisher, self.anchor)
        learner.update(loss)
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        fresh = fisher_information(learner, task, self.fisher_examples)
        older = {id(parameter): value for parameter, value in zip(self.covered, self.fisher, strict=True)}
        self.covered = list(learner.parameters)  # fewer than before, once a group is frozen
        self.fisher = [
            self.gamma * older[id(parameter)] + now if id(parameter) in older else now
            for parameter, now in zip(self.covered, fresh, strict=True)
        ]
        self.anchor = [parameter.detach().clone() for parameter in self.covered]
        learner.spend("consolidate", used(self.fisher_examples, task), backward=True)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        names = {id(parameter): name for name, parameter in learner.network.named_parameters()}
        covered = [names[id(parameter)] for parameter in self.covered]
        return {"covered": covered, "fisher": list(self.fisher), "anchor": list(self.anchor)}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        parameters = dict(learner.network.named_parameters())
        self.covered = [parameters[name] for name in state["covered"]]
        self.fisher = laid_out(self.covered, state["fisher"])
        self.anchor = laid_out(self.covered, state["anchor"])


def fisher_information(learner: Learner, task: Task, examples: int) -> list[Tensor]:
    """E[p(y|x) · (∂ log p(y|x) / ∂θ)²] for each trained parameter, over so many training examples of a task."""
    return over_examples(
        learner,
        task,
        examples,
        lambda logits, y: -F.cross_entropy(logits, y),
        lambda gradients, values: torch.einsum("e,e...->...", values.exp(), gradients.square()),
    )
