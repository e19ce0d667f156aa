"""ER-MIR: replay of the examples with the most interference (Aljundi et al. 2019).

    L = CE(batch ∪ B),   B the ``replay`` of ``candidates`` examples from a reservoir with the largest
                         CE(f(x; θ'), y) − CE(f(x; θ), y),   θ' = θ − lr ∇ CE(batch)

Batch and B share one forward pass, as in ER. θ' is a copy of the weights; only the final update moves the network.
Deviations: the gradient for θ' and both scores are computed in evaluation mode, so that the statistics of batch norm
neither move nor mix candidates. Candidates are scored without augmentation; the chosen ones are augmented afterwards.
If the buffer holds no more than ``replay`` examples, all of them are replayed and none is scored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.layers import WithWeights
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method


@final
@dataclass
class MIR(Method):
    """Replay the examples whose loss the next update would raise most."""

    memory: ClassVar[str] = "reservoir"
    candidates: int = setting(50, "Number of examples drawn from the buffer to choose the replayed ones from.", least=1)

    def begin(self, learner: Learner) -> None:
        if self.candidates < learner.replay_size:
            least = f"{learner.replay_size} or more, the number of replayed examples"
            raise ValueError(f"candidates is {self.candidates}; it must be {least}")

    def draws(self, learner: Learner) -> int:
        return self.candidates

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = learner.augment(batch.x), batch.y
        if len(learner.buffer):
            old = learner.recall(self.candidates)
            if len(old["y"]) > learner.replay_size:
                rows = interference(learner, x, y, old).topk(learner.replay_size).indices
                old = {name: column.index_select(0, rows) for name, column in old.items()}
            x, y = torch.cat([x, learner.augment(old["x"])]), torch.cat([y, old["y"]])
        loss, logits = learner.step_on(x, y)
        return loss, {"logits": logits[: len(batch.y)]}


def interference(learner: Learner, x: Tensor, y: Tensor, old: Mapping[str, Tensor]) -> Tensor:
    """Return by how much an update on inputs ``x`` and labels ``y`` would raise the loss of each old example."""
    names = learner.trained([name for name, _ in learner.network.named_parameters()])
    with evaluating(learner.network):
        gradients = learner.gradients(F.cross_entropy(learner.forward(x), y))
        with torch.no_grad():
            updated = torch._foreach_add(learner.parameters, gradients, alpha=-learner.lr)
            network = WithWeights(learner.network, dict(zip(names, updated, strict=True)))
            inputs = learner.plain(old["x"])
            before = F.cross_entropy(learner.forward(inputs), old["y"], reduction="none")
            after = F.cross_entropy(learner.engine.forward(network, inputs), old["y"], reduction="none")
    return after - before
