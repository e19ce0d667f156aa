"""Hard attention to the task (Serrà et al. 2018), for task-IL: every task learns which units it uses.

    a_l = σ(s · e_l),  h_l ← a_l ⊙ h_l             a gate for each unit of layer l, from an embedding e of the task
    s = 1/s_max + (s_max − 1/s_max) · b / (B − 1)  in batch b = 0 … B − 1 of an epoch; s_max in testing
    L = CE + c · Σ a (1 − A) / Σ (1 − A)           A: the largest final gates of earlier tasks
    ∂L/∂w_ij ← (1 − min(A_i, A_j)) · ∂L/∂w_ij      from unit j to unit i; biases: 1 − A_i; inputs: A_j = 1
    ∂L/∂e ← s_max/s · (cosh(s e) + 1) / (cosh(e) + 1) · ∂L/∂e,   |s e| ≤ 50, and |e| ≤ 6 after the step

As in the paper, embeddings start from a normal distribution and have the same learning rate. The loss covers only the
classes of the task, whose rows of the output layer are its own head. Deviations: gradients are not clipped; weight
decay is masked like gradients, and embeddings have none. Gates apply to the outputs of Linear and Conv2d layers, before
ReLU and max-pooling, with which they commute. They are forward hooks that exist only during a call.

Every layer must see only the layer before it, through functions that are 0 at 0. Residual connections are refused: they
bypass the gates of a layer, and a channel that is a sum belongs to several layers, so that no mask covers the weights
that earlier tasks use. Normalisation is refused, since it cancels the gate.

Class-IL prediction uses the gates of the latest task. All classes compete, although no loss ever compared classes of
two tasks. A finetune (FPF, k-FPF) ignores gates and masks and moves weights that earlier tasks use. After one, the
network predicts without gates, in task-IL too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.modules import is_norm, joined, unwrap
from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.layers import find_layers, forward_hooks, probe
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method

LARGEST_EXPONENT = 50.0  # of |s e| in the compensation, where cosh is still finite
LARGEST_EMBEDDING = 6.0  # the authors' bound


@final
@dataclass
class HAT(Method):
    """Learn a gate per unit and task, and protect the units that earlier tasks use."""

    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    s_max: float = setting(400.0, "Steepness of the gates at the end of an epoch and in testing.", above=1)
    c: float = setting(0.75, "Weight of the regulariser, which keeps units free for later tasks.")

    def begin(self, learner: Learner) -> None:
        self.hidden, self.output = find_layers(learner)  # the layers with gates, in order
        check_chain(learner, self.hidden, self.output)
        network, device = unwrap(learner.network), learner.device
        sizes = [len(network.get_submodule(name).get_parameter("weight")) for name in self.hidden]
        self.embeddings = [torch.randn(learner.tasks, n, generator=learner.generator, device=device) for n in sizes]
        self.used = [torch.zeros(size, device=device) for size in sizes]  # A, (units,) of each layer
        self.place = torch.zeros((), dtype=torch.int64, device=device)  # batches in this task
        self.ended = 0  # number of finished tasks
        self.masks = self._masks(learner)  # of each parameter

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        s = steepness(self.place, math.ceil(learner.examples[batch.task] / learner.batch), self.s_max)
        self.place.add_(1)
        rows = [table[batch.task] for table in self.embeddings]
        leaves = [row.clone().requires_grad_() for row in rows]
        gates = [torch.sigmoid(s * leaf) for leaf in leaves]

        logits = self._forward_gated(learner, learner.augment(batch.x), gates)
        entropy = F.cross_entropy(learner.within_task(logits, batch.task), batch.y)
        loss = entropy + self.c * sparsity(gates, self.used)

        gradients = learner.gradients(loss, leaves)
        count = len(learner.parameters)
        learner.descend(gradients[:count], scale=learner.trained(self.masks))
        for row, gradient in zip(rows, gradients[count:], strict=True):
            row.sub_(learner.lr * compensated(gradient, row, s, self.s_max))
            row.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)
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
        return self._forward_gated(learner, x, self._final_gates(min(task, latest)))

    def _final_gates(self, task: int) -> list[Tensor]:
        return [torch.sigmoid(self.s_max * table[task]) for table in self.embeddings]

    def _forward_gated(self, learner: Learner, x: Tensor, gates: Sequence[Tensor]) -> Tensor:
        network = unwrap(learner.network)
        hooks: dict[str, Callable[..., Any]] = {}
        for name, gate in zip(self.hidden, gates, strict=True):
            shaped = gate[:, None, None] if isinstance(network.get_submodule(name), nn.Conv2d) else gate
            hooks[name] = lambda _, __, output, gate=shaped: output * gate
        with forward_hooks(network, hooks):
            return learner.engine.forward(network, x)

    def state_dict(self, learner: Learner) -> dict[str, Any]:
        return {"embeddings": list(self.embeddings), "used": list(self.used), "place": self.place, "ended": self.ended}

    def load_state_dict(self, learner: Learner, state: Mapping[str, Any]) -> None:
        super().load_state_dict(learner, state)
        self.masks = self._masks(learner)

    def _masks(self, learner: Learner) -> list[Tensor]:
        """Return the factor on the gradient of each parameter in the next task."""
        network = unwrap(learner.network)
        task = min(self.ended, learner.tasks - 1)
        masks = {joined(self.output, name): (~learner.foreign[task]).float() for name in ("weight", "bias")}
        below = torch.ones(1, device=learner.device)  # A of the layer below; 1 for the inputs
        for name, used in zip(self.hidden, self.used, strict=True):
            inputs = network.get_submodule(name).get_parameter("weight").shape[1]
            repeated = below.repeat_interleave(inputs // len(below))  # a flattened channel is many inputs
            masks[joined(name, "weight")] = 1 - torch.minimum(used[:, None], repeated)
            masks[joined(name, "bias")] = 1 - used
            below = used
        shaped = []
        for name, parameter in network.named_parameters():
            mask = masks[name].reshape(*masks[name].shape, *[1] * (parameter.ndim - masks[name].ndim))
            shaped.append(torch.empty_like(parameter.detach()).copy_(mask))
        return shaped


def steepness(place: Tensor, batches: int, s_max: float) -> Tensor:
    """Return s for the batch at ``place`` in epochs of ``batches``: 1 / s_max to s_max, or s_max for a single batch."""
    along = (place % batches) / (batches - 1) if batches > 1 else torch.ones_like(place, dtype=torch.float32)
    return 1 / s_max + (s_max - 1 / s_max) * along


def sparsity(gates: Sequence[Tensor], used: Sequence[Tensor]) -> Tensor:
    """Return Σ a (1 − A) / Σ (1 − A), the share of the free units that the gates open; 0 if no unit is free."""
    free = 1 - torch.cat(list(used))
    return (torch.cat(list(gates)) * free).sum() / free.sum().clamp(min=torch.finfo(free.dtype).tiny)


def compensated(gradient: Tensor, embedding: Tensor, s: Tensor, s_max: float) -> Tensor:
    """Return the gradient of an embedding as if gates were σ(e), times s_max; steep gates have almost no gradient."""
    steep = (s * embedding).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    return gradient * (s_max / s) * (steep.cosh() + 1) / (embedding.cosh() + 1)


def check_chain(learner: Learner, hidden: list[str], output: str) -> None:
    """Raise ``ValueError`` unless each layer sees only the layer before it, and sees zeros if that layer is all 0."""
    network = unwrap(learner.network)
    kind = type(network).__name__
    names = [*hidden, output]
    if not hidden:
        raise ValueError(f"hat gates the units before the output layer, and {kind} has none; use mlp or vgg11")
    for name, next_name in pairwise(names):
        seen: list[Tensor] = []
        probe(learner, {
            name: lambda _, __, output: torch.zeros_like(output),
            next_name: lambda _, inputs, __, seen=seen: seen.append(inputs[0]),
        })  # fmt: skip
        if bool(seen[0].any()):
            raise ValueError(
                f"hat cannot train {kind}: if all units of {name} are 0, {next_name} still sees other values, from a "
                "residual connection or a function that is not 0 at 0; use a chain of layers, such as mlp or vgg11"
            )
    for path, module in network.named_modules():
        if is_norm(module):
            raise ValueError(f"hat cannot train {kind}: {path} normalises, which cancels the gates before it")
    known = {joined(name, tensor) for name in names for tensor in ("weight", "bias")}
    if unknown := [name for name, _ in network.named_parameters() if name not in known]:
        raise ValueError(f"hat protects only weights of Linear and Conv2d layers, and {kind} also has {unknown[0]}")
