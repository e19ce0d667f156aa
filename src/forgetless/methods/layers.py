"""What several methods share: the layers of a network in order, and a network with other weights or statistics."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forgetless.compute.modules import unwrap
from forgetless.methods.learner import Learner, evaluating


@final
class WithWeights(nn.Module):
    """A network with other weights under some names. The network itself does not change."""

    def __init__(self, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = network
        self.weights = dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network, self.weights, (x,))
        return logits


def training_outputs(learner: Learner, images: Tensor) -> Tensor:
    """Return the network's outputs for images in training mode, augmented, without moving its running statistics."""
    parts = images.to(learner.device).tensor_split(max(1, len(images) // learner.batch))
    buffers = {name: buffer.clone() for name, buffer in learner.network.named_buffers()}
    network = WithWeights(learner.network, buffers)
    with evaluating(network) if len(images) < learner.smallest_batch else nullcontext():
        return torch.cat([learner.engine.forward(network, learner.augment(part)) for part in parts])


def find_layers(learner: Learner) -> tuple[list[str], str]:
    """Return the names of the Linear and Conv2d layers before the output layer, as they are called, and of that one."""
    network = unwrap(learner.network)
    called: list[str] = []
    hooks: dict[str, Callable[..., Any]] = {
        name: lambda *_, name=name: called.append(name)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }
    probe(learner, hooks)
    if not called or len(network.get_submodule(called[-1]).get_parameter("weight")) != learner.classes:
        wanted = f"a Linear or Conv2d layer of {learner.classes} outputs, one per class"
        raise ValueError(f"{type(network).__name__} does not end with {wanted}, so tasks have no separate heads")
    return called[:-1], called[-1]


@torch.no_grad()
def probe(learner: Learner, hooks: Mapping[str, Callable[..., Any]]) -> None:
    """Run the network once in evaluation mode with forward hooks, on noise, or on zeros for a network of tokens."""
    network = unwrap(learner.network)
    x = learner.zero_inputs(2)
    if x.is_floating_point():
        x = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    with forward_hooks(network, hooks), evaluating(network):
        network(x.to(learner.device))


@contextmanager
def forward_hooks(network: nn.Module, hooks: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Register forward hooks on the layers of these names, and remove them on leaving."""
    handles = [network.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
