"""The multi-layer perceptron of the paper: 784-100-100-10 with ReLU, 89,610 parameters.

Weights start from Xavier's uniform distribution (Glorot & Bengio 2010), biases from 0, as the DER authors' do. From
PyTorch's default, which is half as wide, all methods end a little lower on Seq-MNIST, and the first layer moves less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from forgetless.compute.modules import hooked


class MLP(nn.Module):
    """Linear layers ``fc1`` … ``fcN`` with ReLU between them; any input is flattened first."""

    def __init__(self, sizes: Sequence[int], *, xavier: bool) -> None:
        super().__init__()
        self.depth = len(sizes) - 1
        for i in range(self.depth):
            layer = nn.Linear(sizes[i], sizes[i + 1])
            if xavier:
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
            self.add_module(f"fc{i + 1}", layer)

    def features(self, x: Tensor) -> Tensor:
        """What the last layer sees."""
        x = x.flatten(1)  # (batch, inputs)
        for i in range(1, self.depth):
            x = self.get_submodule(f"fc{i}")(x).relu()
        return x

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.get_submodule(f"fc{self.depth}")(self.features(x))
        return logits

    @property
    def plain(self) -> bool:
        """Whether it is what this file builds: nothing overridden, added, shared, replaced, parametrised or hooked."""
        layers = [layer for layer in self._modules.values() if layer is not None]
        return (
            type(self) is MLP
            and list(self._modules) == [f"fc{i + 1}" for i in range(len(layers))]
            and len(layers) == self.depth
            and all(type(layer) is nn.Linear and layer.bias is not None for layer in layers)
            and list(map(id, self.parameters())) == list(map(id, self._tensors()))
            and not any(map(hooked, [self, *layers]))
            and not any(tensor._backward_hooks for tensor in self.parameters())
        )

    def quick(self, x: Tensor) -> Tensor:
        """``forward`` as one node of the graph; without second derivatives and hooks of layers.

        The same bits on a CPU. On a GPU a layer and its ReLU are one kernel, which may round otherwise.
        """
        logits: Tensor = _Layers.apply(x.flatten(1), *self._tensors())  # type: ignore[no-untyped-call]
        return logits

    @torch.no_grad()
    def backpropagate(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """The cross-entropy, the logits, and the gradient of each parameter that takes one: autograd's bits, no graph.

        At batch 10 autograd's own work takes as long as the arithmetic.
        """
        tensors = self._tensors()
        inputs, logits = _forward(x.flatten(1), tensors)
        aten = torch.ops.aten
        scores = aten._log_softmax(logits, 1, False)
        loss, weight = aten.nll_loss_forward(scores, y, None, 1, -100)
        one = torch.ones((), dtype=loss.dtype)
        gradient = aten.nll_loss_backward(one, scores, y, None, 1, -100, weight)
        gradient = aten._log_softmax_backward_data(gradient, scores, 1, scores.dtype)
        needed = [False, *(tensor.requires_grad for tensor in tensors)]
        return loss, logits, _backward(gradient, inputs, tensors[::2], needed)[1:]

    def _tensors(self) -> list[Tensor]:
        """Weight and bias of each layer."""
        return [tensor for layer in self._modules.values() for tensor in (layer.weight, layer.bias)]  # type: ignore[union-attr, misc]


class _Layers(torch.autograd.Function):
    """Linear layers with ReLU between them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        inputs, x = _forward(x, parameters)
        ctx.save_for_backward(*inputs, *parameters[::2])
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        depth = len(ctx.saved_tensors) // 2
        return tuple(_backward(gradient, ctx.saved_tensors[:depth], ctx.saved_tensors[depth:], ctx.needs_input_grad))


def _forward(x: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """What each layer sees, and what the last gives."""
    inputs = [x]
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        inputs.append(torch._addmm_activation(bias, inputs[-1], weight.t()))  # ReLU
    return inputs, torch.addmm(parameters[-1], inputs[-1], parameters[-2].t())


def _backward(
    gradient: Tensor, inputs: Sequence[Tensor], weights: Sequence[Tensor], needed: Sequence[bool]
) -> list[Tensor | None]:
    """From the gradient of what the last layer gives, those needed: of x, then of each layer's weight and bias."""
    found: list[Tensor | None] = [None] * len(needed)
    for i in reversed(range(len(weights))):
        if needed[1 + 2 * i]:
            found[1 + 2 * i] = gradient.t().mm(inputs[i])
        if needed[2 + 2 * i]:
            found[2 + 2 * i] = gradient.sum(0)
        if not any(needed[: 1 + 2 * i]):
            break
        gradient = gradient.mm(weights[i])
        if i:
            gradient = torch.ops.aten.threshold_backward(gradient, inputs[i], 0)
    else:
        found[0] = gradient
    return found


def mlp(classes: int, inputs: int = 784, hidden: Sequence[int] = (100, 100), *, xavier: bool = True) -> MLP:
    """An MLP; groups ``fc1``, ``fc2``, … one a layer. ``xavier=False``: PyTorch's initial weights."""
    return MLP((inputs, *hidden, classes), xavier=xavier)
