"""Put back what a finetuning changes besides the chosen tensors: the network's buffers and the user's randomness."""

import random
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy
import torch
from torch import Tensor, nn

from forgetless.compute.modules import joined
from forgetless.compute.shards import reshard, shard
from forgetless.repair.groups import float_tensors


@final
class Restorer:
    """Copies of what a finetuning may write to: the chosen tensors, and what a forward pass may update.

    With ``host``, the chosen parameters are copied to host memory. Buffers are small and stay on their device.
    """

    def __init__(self, network: nn.Module, names: Collection[str], *, host: bool = False) -> None:
        self._network = network
        moving = _moving(network, names)
        still = {name: tensor for name, tensor in _written(network).items() if name not in moving}
        with torch.inference_mode(False):
            parameters = {name: tensor for name, tensor in moving.items() if isinstance(tensor, nn.Parameter)}
            buffers = {name: tensor for name, tensor in moving.items() if name not in parameters}
            self.moving, self.still = copies(parameters, host=host) | copies(buffers), copies(still)
        paths = {name: name.rpartition(".") for name in self.moving | self.still}
        self._places = {name: (network.get_submodule(path), own) for name, (path, _, own) in paths.items()}

    def renew(self) -> None:
        """Copy the present values over the earlier ones. A forward pass may have replaced a buffer by another shape."""
        for held in (self.moving, self.still):
            present = self.present(held)
            held.update(copies({name: now for name, now in present.items() if now.shape != held[name].shape}))
            copy_all(held, present)

    def present(self, names: Collection[str]) -> dict[str, Tensor]:
        """Return some of the tensors that were copied (of sharded ones, this process's shards) as they are now."""
        reshard(self._network)
        return {name: shard(getattr(*self._places[name])) for name in names}

    def restore(self) -> None:
        """Put back everything."""
        self._put_back(self.moving | self.still)

    def restore_still(self) -> None:
        """Put back what the forward passes wrote to, but was not chosen."""
        self._put_back(self.still)

    def state_dict(self) -> dict[str, Any]:
        return {"before": copies(self.moving), "still": copies(self.still)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for held, values in ((self.moving, state["before"]), (self.still, state["still"])):
            for name, value in values.items():
                held[name].copy_(value)

    @torch.no_grad()
    def _put_back(self, values: Mapping[str, Tensor]) -> None:
        """Write these values. A buffer that was replaced, or made in ``inference_mode``, becomes a new copy."""
        present = self.present([name for name in values if getattr(*self._places[name], None) is not None])
        for name, value in values.items():
            tensor = present.get(name)
            kind = value.shape, value.dtype
            if tensor is None or tensor.is_inference() or (tensor.shape, tensor.dtype) != kind:
                with torch.inference_mode(False):
                    setattr(*self._places[name], value.clone())
            else:
                tensor.copy_(value)


def all_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return the parameters (of sharded ones, this process's shards) and buffers as they are now.

    A network may replace the tensor of a buffer.
    """
    reshard(network)
    parameters = {name: shard(parameter) for name, parameter in network.named_parameters()}
    return {**parameters, **dict(network.named_buffers())}


@contextmanager
def untouched_randomness(generator: torch.Generator) -> Iterator[None]:
    """Seed the global random states from ``generator`` inside a ``with`` block, and restore them afterwards.

    These are torch's on the CPU and CUDA, ``random``'s and numpy's; augmentation and dropout draw from them.
    """
    seed = draw_seed(generator)
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also seeds devices that were never used
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        random.seed(seed)
        numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)


def draw_seed(generator: torch.Generator) -> int:
    """Return a seed for other random numbers."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))


@torch.no_grad()
def copies(tensors: Mapping[str, Tensor], *, host: bool = False) -> dict[str, Tensor]:
    """Return copies of tensors (of sharded ones, of this process's shards), on their devices or in host memory."""
    sources = {name: shard(tensor) for name, tensor in tensors.items()}
    made = {name: empty_copy(tensor, host=host) for name, tensor in sources.items()}
    copy_all(made, sources)
    return made


@torch.no_grad()
def copy_all(held: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    """Copy tensors over others of the same names, with one kernel for all tensors of a dtype."""
    for dtype in {tensor.dtype for tensor in sources.values()}:
        names = [name for name, tensor in sources.items() if tensor.dtype == dtype]
        torch._foreach_copy_([held[name] for name in names], [sources[name] for name in names])


def empty_copy(tensor: Tensor, *, host: bool) -> Tensor:
    """Return memory for a copy of a tensor: on its device, or in host memory, pinned if the tensor is on a GPU."""
    if not host:
        return torch.empty_like(tensor)
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)


def _written(network: nn.Module) -> dict[str, Tensor]:
    """Return what a forward pass may write to: buffers, and the weights of embeddings with a ``max_norm``."""
    bounded = {id(module.weight) for module in network.modules() if getattr(module, "max_norm", None) is not None}
    weights = {name: parameter for name, parameter in network.named_parameters() if id(parameter) in bounded}
    return {**dict(network.named_buffers()), **weights}


def _moving(network: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors that move with a finetuning of these names.

    These are the named ones, the counters of the layers whose buffers are named, and the vectors of a spectral norm
    whose weight is named, in torch's parametrization or its older form (``weight_orig``).
    """
    tensors, wanted = float_tensors(network), set(names)
    moving = {name: tensors[name] for name in names}
    vectors = tuple(name.rpartition(".")[0] + "." for name in names if ".parametrizations." in f".{name}")
    older = {name.removesuffix("_orig") + vector for name in names if name.endswith("_orig") for vector in ("_u", "_v")}
    moving |= {name: buffer for name, buffer in network.named_buffers() if name in older or name.startswith(vectors)}
    for path, module in network.named_modules():
        buffers = {joined(path, name): buffer for name, buffer in module.named_buffers(recurse=False)}
        if buffers.keys() & wanted:
            moving.update((name, buffer) for name, buffer in buffers.items() if name in wanted or name not in tensors)
    return moving
