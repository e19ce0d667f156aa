"""Put a network back as it was before a finetuning."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from forgetless.compute.modules import joined
from forgetless.repair.groups import float_tensors


@final
class Restorer:
    """Copies of what a finetuning may write to: the chosen tensors, and what a forward pass may update."""

    def __init__(self, network: nn.Module, names: Collection[str]) -> None:
        self._network = network
        moving = _moving(network, names)
        still = {name: tensor for name, tensor in _written(network).items() if name not in moving}
        with torch.inference_mode(False):
            self.moving = {name: tensor.detach().clone() for name, tensor in moving.items()}
            self.still = {name: tensor.detach().clone() for name, tensor in still.items()}

    def restore(self) -> None:
        """Put everything back."""
        self._put_back(self.moving | self.still)

    def restore_still(self) -> None:
        """Put back what the forward passes wrote to, but was not chosen."""
        self._put_back(self.still)

    def moved(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return how far each of these tensors is from its copy."""
        tensors = all_tensors(self._network)
        return {name: tensors[name].detach() - self.moving[name] for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return the copies."""
        return {
            "before": {name: tensor.clone() for name, tensor in self.moving.items()},
            "still": {name: tensor.clone() for name, tensor in self.still.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies that ``state_dict`` returned."""
        for copies, values in ((self.moving, state["before"]), (self.still, state["still"])):
            for name, value in values.items():
                copies[name].copy_(value)

    @torch.no_grad()
    def _put_back(self, values: Mapping[str, Tensor]) -> None:
        """Write these values. A buffer that was replaced by one of another shape, or that was made in
        ``inference_mode`` and cannot be written to, becomes the copy itself.
        """
        tensors = all_tensors(self._network)
        for name, value in values.items():
            same = name in tensors and (tensors[name].shape, tensors[name].dtype) == (value.shape, value.dtype)
            if same and not tensors[name].is_inference():
                tensors[name].copy_(value)
            else:
                path, _, attribute = name.rpartition(".")
                setattr(self._network.get_submodule(path), attribute, value)


def all_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers as they are now: a network may replace the tensor of a buffer."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def _written(network: nn.Module) -> dict[str, Tensor]:
    """Return what a forward pass may write to: buffers, and the weights of embeddings with a ``max_norm``."""
    embeddings = [module for module in network.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    bounded = {id(module.weight) for module in embeddings if module.max_norm is not None}
    weights = {name: parameter for name, parameter in network.named_parameters() if id(parameter) in bounded}
    return {**dict(network.named_buffers()), **weights}


def _moving(network: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors that move when ``names`` are finetuned.

    They are the named tensors, the counters beside named buffers, and the vectors of a spectral norm of a named weight.
    """
    tensors = float_tensors(network)
    moving = {name: tensors[name] for name in names}
    vectors = tuple(name.rpartition(".")[0] + "." for name in names if ".parametrizations." in f".{name}")
    older = {name.removesuffix("_orig") + vector for name in names if name.endswith("_orig") for vector in ("_u", "_v")}
    moving |= {name: buffer for name, buffer in network.named_buffers() if name in older or name.startswith(vectors)}
    for path, module in network.named_modules():
        own = {joined(path, name): buffer for name, buffer in module.named_buffers(recurse=False)}
        if own.keys() & set(names):
            moving.update((name, buffer) for name, buffer in own.items() if name in names or name not in tensors)
    return moving
