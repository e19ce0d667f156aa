"""PackNet (Mallya & Lazebnik 2018), for task-IL: every task owns some of the weights, which then never change.

A task trains the weights that are still free, and the others take part as they are. When it ends, of each layer's free
weights the largest by magnitude are kept, the rest set to 0; the kept are trained for ``retrain_epochs`` more, and are
then owned by the task. Task t is predicted with the weights owned by tasks up to t, all others at 0.

As in the paper: layers are pruned each for itself; biases are fixed after the first task; the loss is over the classes
of the task alone, whose rows of the output layer are a head of its own, not pruned. Weights are those of Linear and
Conv2d layers; what else a network has is fixed with the biases, but for normalisation.
Deviations: every task has weights and statistics of normalisation of its own, where the paper, whose network is trained
before, fixes those of the first: in a network that is not, with batch norm, the second task then soon diverges. By
default a task keeps 1 / (tasks left) of the free weights, so that all get as many, in place of a share set by hand; the
last one then has nothing to prune, and is not retrained. Weight decay leaves alone what does not move.

Class-IL prediction is by the network as it is: the masks of the latest task, all classes competing, though no loss ever
compared classes of two tasks. A finetuning (FPF, k-FPF) moves whatever is in its groups, owned or not, and what it
lowers is the loss of the whole network: owned weights then change, free ones leave 0, and with them what earlier tasks
predict. So after one, task-IL prediction is by the whole network too, the classes of the task among themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.compute.modules import joined, unwrap
from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.layers import Replaced, layers
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.repair.groups import is_norm

FREE = 32767  # owner of what no task owns: later than all tasks


@final
@dataclass
class PackNet(Method):
    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    keep: float = setting(0.0, "share of a layer's free weights that a task keeps; 0: 1 / (tasks left)")
    retrain_epochs: int = setting(1, "epochs of training after a task's pruning")
    hidden: list[str] = field(default_factory=list, init=False, repr=False)  # layers that are pruned
    output: str = field(default="", init=False, repr=False)
    owner: list[Tensor] = field(default_factory=list, init=False, repr=False)  # the task of each weight of ``hidden``
    masks: list[Tensor] = field(default_factory=list, init=False, repr=False)  # of each parameter: 1 where it moves
    norms: list[dict[str, Tensor]] = field(default_factory=list, init=False, repr=False)  # of each task that has ended
    ended: int = field(default=0, init=False, repr=False)  # tasks

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise ValueError(
                f"keep is {self.keep!r}; it must be a share from 0 to 1, where 0 stands for 1 / (tasks left)"
            )
        if self.retrain_epochs < 0:
            raise ValueError(f"retrain_epochs is {self.retrain_epochs!r}; it must be 0 or more")

    def begin(self, learner: Learner) -> None:
        called, self.output = layers(learner)
        self.hidden = [name for name in dict.fromkeys(called) if name != self.output]
        weights = self._weights(learner)
        self.owner = [torch.full_like(weight, FREE, dtype=torch.int16) for weight in weights.values()]
        self.norms, self.ended = [], 0
        self.masks = self._moving(learner, 0, FREE)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(learner.among(logits, batch.task), batch.y)
        learner.descend(learner.gradients(loss), scale=learner.trained(self.masks))
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = self.keep or 1 / (learner.tasks - number)
        pairs = zip(self._weights(learner).values(), self.owner, strict=True)
        self.owner = [prune(weight, owner, number, share) for weight, owner in pairs]
        if share < 1:
            self.masks = self._moving(learner, number, number)
            for _ in range(self.retrain_epochs):
                self._retrain(learner, task, number)
        self.norms.append({name: tensor.clone() for name, tensor in self._normalisation(learner).items()})
        self.ended = number + 1
        self._settle(learner)

    def _retrain(self, learner: Learner, task: Task, number: int) -> None:
        device = task.train.y.device
        order = torch.randperm(len(task.train), generator=learner.generator, device=device)
        for rows in learner.batches(order):
            part = task.train.subset(rows)
            key = (len(rows), number > 0)
            learner.counted("consolidate", key, partial(self.step, learner, Batch(part.x, part.y, number)))

    def predict_task(self, learner: Learner, x: Tensor, task: int) -> Tensor:
        if task >= self.ended - 1 or learner.finetuned:
            return self.predict(learner, x)
        pairs = zip(self._weights(learner).items(), self.owner, strict=True)
        owned = {name: weight * (owner <= task) for (name, weight), owner in pairs}
        return learner.engine.forward(Replaced(unwrap(learner.network), owned | self.norms[task]), x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"owner": list(self.owner), "norms": list(self.norms), "ended": self.ended}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        pairs = zip(self.owner, state["owner"], strict=True)
        self.owner = [torch.empty_like(mine).copy_(owner) for mine, owner in pairs]
        now = self._normalisation(learner)
        self.norms = [{name: torch.empty_like(now[name]).copy_(one[name]) for name in now} for one in state["norms"]]
        self.ended = state["ended"]
        self._settle(learner)

    def _settle(self, learner: Learner) -> None:
        """Once a task has ended: what the next one moves."""
        if self.ended:
            self.masks = self._moving(learner, min(self.ended, learner.tasks - 1), FREE)

    def _normalisation(self, learner: Learner) -> dict[str, Tensor]:
        """Weights and statistics of all normalisation layers, by name."""
        found: dict[str, Tensor] = {}
        for path, module in unwrap(learner.network).named_modules():
            if is_norm(module):
                own = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
                found |= {joined(path, name): tensor.detach() for name, tensor in own if tensor.is_floating_point()}
        return found

    def _weights(self, learner: Learner) -> dict[str, Tensor]:
        network = unwrap(learner.network)
        names = [joined(layer, "weight") for layer in self.hidden]
        return {name: network.get_parameter(name).detach() for name in names}

    def _moving(self, learner: Learner, task: int, owner: int) -> list[Tensor]:
        """For each parameter 1 where it moves while this task is trained: of the layers, the weights of this owner."""
        always = self._normalisation(learner)
        names = [joined(layer, "weight") for layer in self.hidden]
        moving = {name: whose == owner for name, whose in zip(names, self.owner, strict=True)}
        heads = [joined(self.output, name) for name in ("weight", "bias")]
        made = []
        for name, parameter in unwrap(learner.network).named_parameters():
            if name in moving:
                mask = moving[name]
            elif name in heads:
                mask = ~learner.foreign[task].reshape(-1, *[1] * (parameter.ndim - 1))
            else:
                mask = torch.tensor(task == 0 or name in always, device=learner.device)
            made.append(torch.empty_like(parameter.detach()).copy_(mask))
        return made


@torch.no_grad()
def prune(weight: Tensor, owner: Tensor, task: int, share: float) -> Tensor:
    """Of the free weights, the ``share`` of largest magnitude goes to ``task``, the others become 0; the new owners."""
    free = owner == FREE
    count = int(free.sum())
    kept = max(1, round(share * count)) if count else 0
    largest = weight.abs().masked_fill(~free, -1.0).flatten().topk(kept).indices
    taken = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device).index_fill_(0, largest, True)
    now = torch.where(taken.view(weight.shape), torch.full_like(owner, task), owner)
    weight.masked_fill_(now == FREE, 0.0)
    return now
