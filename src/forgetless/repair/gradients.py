"""Differentiate a loss for chosen parameters, and leave ``.grad`` and ``requires_grad`` of all parameters alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import final

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.shards import averaging, reshard, shard, shard_count

NO_GRADIENT = (
    "the loss does not depend on the tensors to finetune: forward or loss detaches it or runs under torch.no_grad(), "
    "or the network does not use them"
)
REENTRANT = "CheckpointFunctionBackward"  # the node of torch.utils.checkpoint.checkpoint(..., use_reentrant=True)


@final
class Gradients:
    """The gradients of one network's losses.

    ``torch.autograd.grad`` computes only what the chosen parameters need. Sharded parameters (``fully_shard``) and
    reentrant activation checkpointing work only with ``backward()``, which computes the gradients of all parameters.
    The user's gradients are set aside meanwhile. Make one before the forward pass: afterwards, ``fully_shard`` may show
    other parameters.
    """

    def __init__(self, network: nn.Module) -> None:
        reshard(network)
        self._network, self._parameters = network, list(network.parameters())
        self._by_backward: bool | None = None  # None: not known before the first loss

    def differentiate(
        self, value: Tensor, chosen: Sequence[Tensor], scale: Tensor | None = None
    ) -> Sequence[Tensor | None]:
        """Return the gradient of a loss for each chosen parameter, times ``scale``; None if it has no influence.

        The gradient of a sharded parameter is this process's shard of the mean over all processes.
        """
        if not value.requires_grad:
            raise ValueError(NO_GRADIENT)
        if self._by_backward is None:
            self._by_backward = any(hasattr(tensor, "device_mesh") for tensor in chosen) or _is_reentrant(value)
        if self._by_backward:
            with _set_aside(self._parameters), averaging(self._network):
                value.backward(scale)
                reshard(self._network)
                return [None if parameter.grad is None else shard(parameter.grad) for parameter in chosen]
        return torch.autograd.grad(value, chosen, scale, allow_unused=True)


def dense(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> list[Tensor]:
    """Return one dense gradient per parameter, zeros where there is none."""
    known = [g.to_dense() if g is not None and g.is_sparse else g for g in gradients or [None] * len(parameters)]
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, known, strict=True)]


def clipped(parameters: Sequence[Tensor], gradients: list[Tensor], most: float, processes: Processes) -> list[Tensor]:
    """Return the gradients, scaled down if the norm of all together exceeds ``most``.

    Each of the ``processes`` has the gradients of its shards; it is ``ALONE`` if it has all of them.
    """
    squares = [g.square().sum() * shard_count(p) for p, g in zip(parameters, gradients, strict=True)]
    square = torch.stack(squares).sum()
    square = processes.mean(square)  # the sum over shards: each was counted as often as there are shards
    return list(torch._foreach_mul(gradients, (most / square.sqrt()).clamp(max=1.0)))


@contextmanager
def _set_aside(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Let the parameters have no ``.grad`` inside a ``with`` block, and their own afterwards."""
    held = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in zip(parameters, held, strict=True):
            parameter.grad = gradient


def _is_reentrant(value: Tensor) -> bool:
    """Return whether the graph of a loss goes through reentrant activation checkpointing."""
    seen = {value.grad_fn}
    waiting = [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if type(node).__name__ == REENTRANT:
            return True
        following = {following for following, _ in node.next_functions} - seen
        seen |= following
        waiting += following
    return False
