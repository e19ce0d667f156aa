"""Hard attention to the task (Serrà et al. 2018), for task-IL: every task learns which units it uses.

    a_l = σ(s · e_l),  h_l ← a_l ⊙ h_l            a gate for each unit of layer l, from an embedding e of the task
    s = 1/s_max + (s_max − 1/s_max) · b / (B − 1)  over the batches b = 0 … B − 1 of an epoch; s_max in testing
    L = CE + c · Σ a (1 − A) / Σ (1 − A)           A the largest gates that earlier tasks ended with
    ∂L/∂w_ij ← (1 − min(A_i, A_j)) · ∂L/∂w_ij      from unit j to unit i; biases by 1 − A_i, the inputs have A_j = 1
    ∂L/∂e ← s_max/s · (cosh(s e) + 1) / (cosh(e) + 1) · ∂L/∂e,   |s e| at most 50, and |e| at most 6 after the step

As in the paper, embeddings start from a normal distribution and learn at the same rate; the loss is over the classes of
the task alone, whose rows of the output layer are a head of its own. Deviations: gradients are not clipped; weight
decay is masked as gradients are, and embeddings have none. Gates stand at the outputs of Linear and Conv2d layers,
before ReLU and max-pooling, with which they commute. They are forward hooks during the call alone.

That holds for networks in which a layer sees only the layer before, through functions that are 0 at 0. Refused are
residual connections: what comes around a layer is not closed with its gates, and a channel that is a sum belongs to
several layers, so that no mask says which weights earlier tasks use. So is normalisation, which divides the gate out.

Class-IL prediction is with the gates of the latest task, all classes competing, though no loss ever compared classes of
two tasks. A finetuning (FPF, k-FPF) sees the network without gates and masks, and moves what earlier tasks use; after
one, the network predicts as it was finetuned: without gates, in task-IL with the classes of the task among themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.modules import joined, unwrap
from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.layers import call, layers, units
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method
from forgetless.repair.groups import is_norm

STEEPEST = 50.0  # of |s e| in the compensation: cosh of more is not finite
FARTHEST = 6.0  # an embedding goes, the authors' bound


@final
@dataclass
class HAT(Method):
    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    s_max: float = setting(400.0, "steepness of the gates at the end of an epoch and in testing")
    c: float = setting(0.75, "weight of the regulariser, which keeps units free for later tasks")
    hidden: list[str] = field(default_factory=list, init=False, repr=False)  # layers with gates, in order
    output: str = field(default="", init=False, repr=False)
    embeddings: list[Tensor] = field(default_factory=list, init=False, repr=False)  # of each layer (tasks, units)
    used: list[Tensor] = field(default_factory=list, init=False, repr=False)  # A, of each layer (units,)
    masks: list[Tensor] = field(default_factory=list, init=False, repr=False)  # of each parameter
    place: Tensor = field(default_factory=lambda: torch.zeros(()), init=False, repr=False)  # batches of the task so far
    ended: int = field(default=0, init=False, repr=False)  # tasks

    def __post_init__(self) -> None:
        if not self.s_max > 1:
            raise ValueError(f"s_max is {self.s_max!r}; it must be above 1, since s goes from 1 / s_max to s_max")

    def begin(self, learner: Learner) -> None:
        self.hidden, self.output = layers(learner)
        check_chain(learner, self.hidden, self.output)
        sizes = [units(unwrap(learner.network).get_submodule(name)) for name in self.hidden]
        draw = partial(torch.randn, generator=learner.generator, device=learner.device)
        self.embeddings = [draw(learner.tasks, size) for size in sizes]
        self.used = [torch.zeros(size, device=learner.device) for size in sizes]
        self.place = torch.zeros((), dtype=torch.int64, device=learner.device)
        self.ended = 0
        self.masks = self._masks(learner)

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        s = steepness(self.place, math.ceil(learner.examples[batch.task] / learner.batch), self.s_max)
        self.place.add_(1)
        rows = [table[batch.task] for table in self.embeddings]
        learned = [row.clone().requires_grad_() for row in rows]
        gates = [torch.sigmoid(s * row) for row in learned]
        logits = self._gated(learner, learner.augment(batch.x), gates)
        loss = F.cross_entropy(learner.among(logits, batch.task), batch.y) + self.c * sparsity(gates, self.used)
        gradients = learner.gradients(loss, learned)
        count = len(learner.parameters)
        learner.descend(gradients[:count], scale=learner.trained(self.masks))
        for row, gradient in zip(rows, gradients[count:], strict=True):
            row.sub_(learner.lr * compensated(gradient, row, s, self.s_max)).clamp_(-FARTHEST, FARTHEST)
        return loss.detach(), {"logits": logits.detach()}

    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        pairs = zip(self.used, self._final_gates(number), strict=True)
        self.used = [torch.maximum(used, gate) for used, gate in pairs]
        self.ended = number + 1
        self.place.zero_()
        self.masks = self._masks(learner)

    def predict(self, learner: Learner, x: Tensor) -> Tensor:
        return self.predict_task(learner, x, learner.tasks)

    def predict_task(self, learner: Learner, x: Tensor, task: int) -> Tensor:
        if learner.finetuned:
            return learner.forward(x)
        latest = max(self.ended - 1, 0)
        return self._gated(learner, x, self._final_gates(min(task, latest)))

    def _final_gates(self, task: int) -> list[Tensor]:
        return [torch.sigmoid(self.s_max * table[task]) for table in self.embeddings]

    def _gated(self, learner: Learner, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        return learner.engine.forward(Gated(unwrap(learner.network), dict(zip(self.hidden, gates, strict=True))), x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"embeddings": list(self.embeddings), "used": list(self.used), "place": self.place, "ended": self.ended}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        self.embeddings = [table.to(learner.device, copy=True) for table in state["embeddings"]]
        self.used = [one.to(learner.device, copy=True) for one in state["used"]]
        self.place = state["place"].to(learner.device, copy=True)
        self.ended = state["ended"]
        self.masks = self._masks(learner)

    def _masks(self, learner: Learner) -> list[Tensor]:
        """What the gradient of each parameter is multiplied by in the task that comes."""
        network = unwrap(learner.network)
        task = min(self.ended, learner.tasks - 1)
        masks = {joined(self.output, name): (~learner.foreign[task]).float() for name in ("weight", "bias")}
        below: Tensor | None = None  # A of the layer before; of the inputs, 1
        for name, used in zip(self.hidden, self.used, strict=True):
            weight = network.get_submodule(name).get_parameter("weight")
            inputs = weight.shape[1]
            if below is None:
                below = torch.ones(inputs, device=used.device)
            spread = below.repeat_interleave(inputs // len(below))  # a channel that was flattened is many inputs
            masks[joined(name, "weight")] = 1 - torch.minimum(used[:, None], spread)
            masks[joined(name, "bias")] = 1 - used
            below = used
        made = []
        for name, parameter in network.named_parameters():
            mask = masks[name].reshape(*masks[name].shape, *[1] * (parameter.ndim - masks[name].ndim))
            made.append(torch.empty_like(parameter.detach()).copy_(mask))
        return made


def steepness(place: Tensor, batches: int, s_max: float) -> Tensor:
    """S for the batch at this place, of epochs of so many batches: from 1 / s_max to s_max; an epoch of one: s_max."""
    along = (place % batches) / (batches - 1) if batches > 1 else torch.ones_like(place, dtype=torch.float32)
    return 1 / s_max + (s_max - 1 / s_max) * along


def sparsity(gates: Sequence[Tensor], used: Sequence[Tensor]) -> Tensor:
    """Σ a (1 − A) / Σ (1 − A): how many of the units that earlier tasks do not use are used; 0 if none is left."""
    free = 1 - torch.cat(list(used))
    return (torch.cat(list(gates)) * free).sum() / free.sum().clamp(min=torch.finfo(free.dtype).tiny)


def compensated(gradient: Tensor, embedding: Tensor, s: Tensor, s_max: float) -> Tensor:
    """The gradient of an embedding as it would be with gates σ(e), times s_max: a steep gate has next to none."""
    steep = (s * embedding).clamp(-STEEPEST, STEEPEST)
    return gradient * (s_max / s) * (steep.cosh() + 1) / (embedding.cosh() + 1)


@final
class Gated(nn.Module):
    """A network whose layers' outputs are multiplied by gates, by hooks that are there during a call alone."""

    def __init__(self, network: nn.Module, gates: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = network
        self.gates = dict(gates)

    def forward(self, x: Tensor) -> Tensor:
        handles = []
        try:
            for name, gate in self.gates.items():
                layer = self.network.get_submodule(name)
                shaped = gate[:, None, None] if isinstance(layer, nn.Conv2d) else gate
                handles.append(layer.register_forward_hook(lambda _, __, output, gate=shaped: output * gate))
            logits: Tensor = self.network(x)
        finally:
            for handle in handles:
                handle.remove()
        return logits


def check_chain(learner: Learner, hidden: Sequence[str], output: str) -> None:
    """An error unless each layer sees the one before alone, and a layer whose units are all off gives it zeros."""
    network = unwrap(learner.network)
    kind = type(network).__name__
    order = [*hidden, output]
    if not hidden:
        raise ValueError(f"hat gates the units before the output layer; {kind} has none: use mlp or vgg11, say")
    for name in order:
        layer = network.get_submodule(name)
        if order.count(name) > 1:
            raise ValueError(f"hat needs a gate of its own for each layer, but {kind} calls {name} more than once")
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            raise ValueError(f"hat masks weights between all units of two layers; {name} of {kind} has groups of them")
    for name, after in pairwise(order):
        seen: list[Tensor] = []
        call(learner, {
            name: lambda _, __, result: torch.zeros_like(result),
            after: lambda _, inputs, __, seen=seen: seen.append(inputs[0]),
        })  # fmt: skip
        below, above = (network.get_submodule(layer) for layer in (name, after))
        if above.get_parameter("weight").shape[1] % units(below):
            raise ValueError(f"hat cannot tell which inputs of {after} come from which unit of {name} in {kind}")
        if bool(seen[0].any()):
            raise ValueError(
                f"hat cannot train {kind}: with every unit of {name} off, {after} still sees something, by a residual "
                "connection, say, or a function that is not 0 at 0. A gate would not close its unit, and no mask would "
                "tell what earlier tasks use: take a network whose layers follow one another, as mlp or vgg11"
            )
    for path, module in network.named_modules():
        if is_norm(module):
            raise ValueError(f"hat cannot train {kind}: {path} normalises, and so divides out the gate before it")
    known = {joined(name, tensor) for name in order for tensor in ("weight", "bias")}
    for name, _ in network.named_parameters():
        if name not in known:
            raise ValueError(
                f"hat keeps only the weights of Linear and Conv2d layers for a task; {kind} also has {name}"
            )
