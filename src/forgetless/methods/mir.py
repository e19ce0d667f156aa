"""Experience replay of what is maximally interfered with, ER-MIR (Aljundi et al. 2019).

    L = CE over the batch and the ``replay`` of ``candidates`` examples drawn from a reservoir for which
        CE(f(x; θ'), y) − CE(f(x; θ), y) is largest,   θ' = θ − lr ∇ CE(batch) where the update of the batch would lead

The update is over the batch and the chosen in one pass, as ER's. θ' is computed beside the network, which only that
update moves. Deviations: the gradient for θ' and both scores are taken in evaluation mode, so that the statistics of
batch norm neither move nor mix candidates; candidates are scored as in testing, the chosen augmented afterwards. While
the buffer holds no more than ``replay`` examples, all of them are taken and nothing is scored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.methods.layers import Replaced
from forgetless.methods.learner import Batch, Learner, evaluating
from forgetless.methods.method import Method


@final
@dataclass
class MIR(Method):
    memory: ClassVar[str] = "reservoir"
    candidates: int = setting(
        50, "examples drawn from the buffer, of which the most interfered with are replayed", least=1
    )

    def begin(self, learner: Learner) -> None:
        if self.candidates < learner.replay_size:
            raise ValueError(
                f"candidates is {self.candidates}; {learner.replay_size} of them are replayed, so it must be "
                f"{learner.replay_size} or more"
            )

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
        logits = learner.forward(x)
        loss = F.cross_entropy(logits, y)
        learner.update(loss)
        return loss.detach(), {"logits": logits[: len(batch.y)].detach()}


def interference(learner: Learner, x: Tensor, y: Tensor, old: Mapping[str, Tensor]) -> Tensor:
    """By how much the loss of each old example would rise if the network were updated on inputs ``x`` and labels."""
    names = learner.trained([name for name, _ in learner.network.named_parameters()])
    with evaluating(learner.network):
        gradients = learner.gradients(F.cross_entropy(learner.forward(x), y))
        with torch.no_grad():
            virtual = torch._foreach_add(learner.parameters, gradients, alpha=-learner.lr)
            moved = Replaced(learner.network, dict(zip(names, virtual, strict=True)))
            images = learner.plain(old["x"])
            before = F.cross_entropy(learner.forward(images), old["y"], reduction="none")
            after = F.cross_entropy(learner.engine.forward(moved, images), old["y"], reduction="none")
    return after - before
