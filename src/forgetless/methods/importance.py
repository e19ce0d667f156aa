"""What oEWC, SI and MAS share: a penalty on moving important weights, and importance from single examples.

    L = CE + λ Σ_j I_j (θ_j − θ*_j)²

I_j is the importance of a weight and θ*_j its value at the end of a task.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from forgetless.data.stream import Task
from forgetless.methods.learner import Batch, Learner, evaluating

PairFunction = Callable[[Tensor, Tensor], Tensor]


def add_penalty(
    loss: Tensor, weight: float, parameters: Iterable[Tensor], importance: Sequence[Tensor], anchor: Sequence[Tensor]
) -> Tensor:
    """Return loss + weight · Σ importance · (parameter − anchor)²."""
    for parameter, value, place in zip(parameters, importance, anchor, strict=True):
        loss = loss + weight * (value * (parameter - place).square()).sum()
    return loss


def penalised_step(
    learner: Learner, batch: Batch, weight: float, importance: Sequence[Tensor], anchor: Sequence[Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Take one step of SGD on the cross-entropy of a batch with the penalty."""
    logits = learner.forward(learner.augment(batch.x))
    loss = F.cross_entropy(logits, batch.y)
    loss = add_penalty(loss, weight, learner.parameters, learner.trained(importance), learner.trained(anchor))
    learner.update(loss)
    return loss.detach(), {"logits": logits.detach()}


def mean_over_task(
    learner: Learner, task: Task, examples: int, value: PairFunction, reduce: PairFunction
) -> list[Tensor]:
    """Return the mean over training examples of a function of their gradients, for each trained parameter.

    ``value`` computes what is differentiated, from the outputs (1, classes) and the label (1,) of one example.
    ``reduce`` sums over gradients (examples, …) and values (examples,). The ``examples``, all if that is 0, are evenly
    spread. The passes are in evaluation mode, since batch norm would mix the examples.
    """
    network = learner.network
    trained = {id(parameter) for parameter in learner.parameters}
    free = {name: p.detach() for name, p in network.named_parameters() if id(p) in trained}
    fixed = {name: p.detach() for name, p in network.named_parameters() if id(p) not in trained}
    fixed.update(network.named_buffers())

    def value_of_example(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return value(functional_call(network, {**weights, **fixed}, (x[None],)), y[None])

    gradients_and_values = vmap(grad_and_value(value_of_example), in_dims=(None, 0, 0))
    room = 1_000_000_000 if learner.device.type == "cuda" else 20_000_000  # gradient elements in memory at once
    size = max(1, room // sum(tensor.numel() for tensor in free.values()))
    count = min(examples or len(task.train), len(task.train))
    rows = torch.arange(count, device=task.train.y.device) * len(task.train) // count
    total = {name: torch.zeros_like(tensor) for name, tensor in free.items()}
    with evaluating(network):
        for part in (task.train.subset(some) for some in rows.split(size)):
            gradients, values = gradients_and_values(free, learner.plain(part.x), part.y)
            for name, gradient in gradients.items():
                total[name] += reduce(gradient, values)
    learner.spend("consolidate", count, backward=True)
    return [tensor / count for tensor in total.values()]
