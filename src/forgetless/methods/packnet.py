"""PackNet (Mallya & Lazebnik 2018), for task-IL: every task owns some of the weights, which then never change.

A task trains the free weights; those of earlier tasks take part but do not move. At its end each layer is pruned: the
largest free weights by magnitude stay, the others become 0. The remaining ones are trained for ``retrain_epochs`` more
and then belong to the task. Task t is predicted with the weights of tasks up to t; all others are 0.

As in the paper, every layer is pruned separately, biases are fixed after the first task, and the loss covers only the
classes of the task, whose rows of the output layer are its own head and not pruned. Linear and Conv2d layers have
weights; all other parameters except those of normalisation are fixed like biases.

Deviations: every task has its own normalisation weights and statistics. The paper fixes those of the first task, but
its network is pretrained; without pretraining and with batch norm, the second task soon diverges. By default a task
keeps 1 / (tasks left) of the free weights, an equal share for all, instead of a share set by hand; the last task then
has nothing to prune and is not retrained. Weight decay applies only to weights that move.

Class-IL prediction uses the network with the masks of the latest task. All classes compete, although no loss ever
compared classes of two tasks. A finetune (FPF, k-FPF) moves all weights of its groups, owned or not, to lower the loss
of the full network. After one, task-IL prediction therefore uses the full network too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.compute.modules import is_norm, joined, unwrap
from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.layers import WithWeights, find_layers
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method

FREE = 32767  # the owner of weights that belong to no task: later than all tasks


@final
@dataclass
class PackNet(Method):
    """Give every task its own weights by pruning and retraining."""

    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    keep: float = setting(
        0.0, "Share of a layer's free weights that a task keeps; 0 for 1 / (tasks left).", least=0, most=1
    )
    retrain_epochs: int = setting(1, "Number of epochs after the pruning of a task.", least=0)

    def begin(self, learner: Learner) -> None:
        called, self.output = find_layers(learner)
        self.hidden = [name for name in dict.fromkeys(called) if name != self.output]  # the pruned layers
        weights = self._hidden_weights(learner).values()
        self.owner = [torch.full_like(weight, FREE, dtype=torch.int16) for weight in weights]  # the task of each weight
        self.norms: list[dict[str, Tensor]] = []  # of each finished task
        self.masks = self._masks(learner, 0, FREE)  # 1 where a parameter moves

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        logits = learner.forward(learner.augment(batch.x))
        loss = F.cross_entropy(learner.within_task(logits, batch.task), batch.y)
        learner.descend(learner.gradients(loss), scale=learner.trained(self.masks))
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        share = self.keep or 1 / (learner.tasks - number)
        pairs = zip(self._hidden_weights(learner).values(), self.owner, strict=True)
        self.owner = [prune(weight, owner, number, share) for weight, owner in pairs]
        if share < 1:
            self.masks = self._masks(learner, number, number)
            for _ in range(self.retrain_epochs):
                order = torch.randperm(len(task.train), generator=learner.generator, device=task.train.y.device)
                for rows in learner.batches(order):
                    part = task.train.subset(rows)
                    step = partial(self.step, learner, Batch(part.x, part.y, number))
                    learner.run_counted("consolidate", (len(rows), number > 0), step)
        self.norms.append({name: tensor.clone() for name, tensor in _normalisation(learner).items()})
        self._mask_next_task(learner)

    def predict_task(self, learner: Learner, x: Tensor, task: int) -> Tensor:
        if task >= len(self.norms) - 1 or learner.finetuned:
            return self.predict(learner, x)
        pairs = zip(self._hidden_weights(learner).items(), self.owner, strict=True)
        weights = {name: weight * (owner <= task) for (name, weight), owner in pairs}
        return learner.engine.forward(WithWeights(unwrap(learner.network), weights | self.norms[task]), x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"owner": self.owner, "norms": self.norms}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        super().load_state_dict(learner, state)
        self._mask_next_task(learner)

    def _mask_next_task(self, learner: Learner) -> None:
        self.masks = self._masks(learner, min(len(self.norms), learner.tasks - 1), FREE)

    def _hidden_weights(self, learner: Learner) -> dict[str, Tensor]:
        network = unwrap(learner.network)
        names = [joined(layer, "weight") for layer in self.hidden]
        return {name: network.get_parameter(name).detach() for name in names}

    def _masks(self, learner: Learner, task: int, owner: int) -> list[Tensor]:
        """Return a mask for each parameter: 1 where it moves while ``task`` trains the weights of ``owner``."""
        hidden = dict(zip(self._hidden_weights(learner), self.owner, strict=True))
        heads = [joined(self.output, name) for name in ("weight", "bias")]
        norms = _normalisation(learner)
        masks = []
        for name, parameter in unwrap(learner.network).named_parameters():
            if name in hidden:
                mask = hidden[name] == owner
            elif name in heads:
                mask = ~learner.foreign[task].reshape(-1, *[1] * (parameter.ndim - 1))
            else:
                mask = torch.tensor(task == 0 or name in norms, device=learner.device)
            masks.append(torch.empty_like(parameter.detach()).copy_(mask))
        return masks


def _normalisation(learner: Learner) -> dict[str, Tensor]:
    """Return the weights and statistics of all normalisation layers by name."""
    tensors: dict[str, Tensor] = {}
    for path, module in unwrap(learner.network).named_modules():
        if is_norm(module):
            members = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
            tensors |= {joined(path, name): tensor.detach() for name, tensor in members if tensor.is_floating_point()}
    return tensors


@torch.no_grad()
def prune(weight: Tensor, owner: Tensor, task: int, share: float) -> Tensor:
    """Give the largest ``share`` of the free weights to ``task``, set the others to 0, and return the new owners."""
    free = owner == FREE
    count = int(free.sum())
    kept = max(1, round(share * count)) if count else 0
    largest = weight.abs().masked_fill(~free, -1.0).flatten().topk(kept).indices
    taken = torch.zeros(weight.numel(), dtype=torch.bool, device=weight.device).index_fill_(0, largest, True)
    owners = torch.where(taken.view(weight.shape), torch.full_like(owner, task), owner)
    weight.masked_fill_(owners == FREE, 0.0)
    return owners
