"""What methods share that look into a network: its layers in the order they compute, a call with other weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forgetless.compute.modules import unwrap
from forgetless.methods.learner import Learner, evaluating


@final
class Replaced(nn.Module):
    """A network with other weights under some names; the network itself stays as it is."""

    def __init__(self, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.network = network
        self.weights = dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.network, self.weights, (x,))
        return logits


def layers(learner: Learner) -> tuple[list[str], str]:
    """Names of the Linear and Conv2d layers in the order they compute, a name for each call; and the output layer's."""
    network = unwrap(learner.network)
    called: list[str] = []
    hooks: dict[str, Callable[..., Any]] = {
        name: lambda *_, name=name: called.append(name)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear | nn.Conv2d)
    }
    call(learner, hooks)
    if not called or units(network.get_submodule(called[-1])) != learner.classes:
        raise ValueError(
            f"{type(network).__name__} does not end with a Linear or Conv2d layer of {learner.classes} outputs, one a "
            "class, so its head for a task cannot be told"
        )
    return called[:-1], called[-1]


def units(layer: nn.Module) -> int:
    """How many outputs, or channels of them, a Linear or Conv2d layer has."""
    return len(layer.get_parameter("weight"))


@torch.no_grad()
def call(learner: Learner, hooks: Mapping[str, Callable[..., Any]]) -> None:
    """One pass of noise in evaluation mode, with forward hooks on some layers that are gone after it.

    For a network of tokens, which are no images to prepare, it is one of zeros.
    """
    network = unwrap(learner.network)
    x = learner.blank(2)
    if x.is_floating_point():
        x = torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    x = x.to(learner.device)
    handles = [network.get_submodule(name).register_forward_hook(hook) for name, hook in hooks.items()]
    try:
        with evaluating(network):
            network(x)
    finally:
        for handle in handles:
            handle.remove()
