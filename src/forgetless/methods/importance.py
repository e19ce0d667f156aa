"""What methods share that hold important weights in their place: a penalty, importance from gradients of examples.

L = CE + λ Σ_j I_j (θ_j − θ*_j)²,   I the importance of a weight, θ* where it was when a task ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from forgetless.data.stream import Task
from forgetless.methods.learner import Learner, evaluating


def penalised(
    loss: Tensor,
    weight: float,
    parameters: Iterable[Tensor],
    importance: Sequence[Tensor],
    anchor: Sequence[Tensor],
) -> Tensor:
    """A loss, and λ times the squared distances to the anchor by their importance."""
    for parameter, value, place in zip(parameters, importance, anchor, strict=True):
        loss = loss + weight * (value * (parameter - place).square()).sum()
    return loss


def over_examples(
    learner: Learner,
    task: Task,
    examples: int,
    value: Callable[[Tensor, Tensor], Tensor],
    gather: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """A mean over training examples of a task of what ``gather`` makes of their gradients, for each trained parameter.

    value     of one example, from its outputs (1, classes) and label (1,): what is differentiated
    gather    from gradients (examples, …) and values (examples,) to their sum (…)
    examples  how many, evenly spread over the task; 0 or more than there are: all. Each costs the memory of a whole
              gradient, and the passes are in evaluation mode, since batch norm would mix single examples
    """
    network = learner.network
    count = used(examples, task)
    trained = {id(parameter) for parameter in learner.parameters}
    free = {name: p.detach() for name, p in network.named_parameters() if id(p) in trained}
    fixed = {name: p.detach() for name, p in network.named_parameters() if id(p) not in trained}
    fixed.update((name, buffer) for name, buffer in network.named_buffers())

    def of_one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return value(functional_call(network, {**values, **fixed}, (x[None],)), y[None])

    each = vmap(grad_and_value(of_one), in_dims=(None, 0, 0))
    room = 1_000_000_000 if learner.device.type == "cuda" else 20_000_000  # numbers of gradients held at a time
    size = max(1, room // sum(tensor.numel() for tensor in free.values()))
    those = torch.arange(count, device=task.train.y.device) * len(task.train) // count
    total = {name: torch.zeros_like(tensor) for name, tensor in free.items()}
    with evaluating(network):
        for some in those.split(size):
            part = task.train.subset(some)
            gradients, values = each(free, learner.plain(part.x), part.y)
            for name, gradient in gradients.items():
                total[name] += gather(gradient, values)
    return [tensor / count for tensor in total.values()]


def used(examples: int, task: Task) -> int:
    """How many training examples of a task a limit leaves; 0: all."""
    return min(examples or len(task.train), len(task.train))


def laid_out(parameters: Iterable[Tensor], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies that lie in memory as the parameters do, on which the last bits of sums over them depend."""
    pairs = zip(parameters, tensors, strict=True)
    return [torch.empty_like(parameter.detach()).copy_(tensor) for parameter, tensor in pairs]
