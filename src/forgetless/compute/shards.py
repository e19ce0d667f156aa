"""Parameters that ``fully_shard`` (FSDP2) splits over processes: each process holds its shard, an ordinary tensor.

Everything else works on shards. A tensor that is not split is its own shard.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes

PARTS = ", so each process has only a part of the weights; use fully_shard (FSDP2), or DistributedDataParallel"
OWN_COPY = (
    "the optimizer of DeepSpeed's ZeRO keeps its own copy of the weights and writes it back after each step, which "
    "would undo a repair; use fully_shard (FSDP2) or DistributedDataParallel, or repair the finished model: "
    "forgetless.repair"
)


def is_sharded(network: nn.Module) -> bool:
    """Return whether ``fully_shard`` was applied to the network or to a part of it."""
    return next(_sharded_modules(network), None) is not None


def reshard(network: nn.Module) -> None:
    """Let a sharded network show its shards as parameters, as it does before a forward pass.

    After a forward pass without ``backward()`` some modules show whole weights instead. They are copies that miss what
    is written to the shards.
    """
    for module in _sharded_modules(network):
        module.reshard()


def shard(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor, detached, in the same memory. It may be empty."""
    return cast(Any, tensor.detach()).to_local() if _is_split(tensor) else tensor.detach()


def shard_count(tensor: Tensor) -> int:
    """Return into how many shards a tensor is split."""
    if not _is_split(tensor):
        return 1
    split = cast(Any, tensor)
    sizes = [split.device_mesh.size(axis) for axis, placement in enumerate(split.placements) if placement.is_shard()]
    return int(torch.tensor(sizes).prod())


def shard_weight(tensor: Tensor) -> float:
    """Return the size of this process's shard relative to the mean over all shards, from 0 if it is empty."""
    return shard(tensor).numel() * shard_count(tensor) / tensor.numel() if _is_split(tensor) else 1.0


def with_shard(tensor: Tensor, values: Tensor) -> Tensor:
    """Return a tensor that is split like ``tensor``, with ``values`` as this process's shard."""
    if not _is_split(tensor):
        return values
    from torch.distributed.tensor import DTensor

    # ``DTensor.from_local`` would move values in host memory to the GPU.
    return DTensor(values, cast(Any, tensor)._spec, requires_grad=False)


def compute_device(network: nn.Module) -> torch.device:
    """Return where the network computes; shards may be in host memory (``CPUOffloadPolicy``)."""
    parameter = next(network.parameters())
    if not _is_split(parameter):
        return parameter.device
    kind = cast(Any, parameter).device_mesh.device_type
    return parameter.device if parameter.device.type == kind else torch.device(kind, torch.cuda.current_device())


@contextmanager
def averaging(network: nn.Module) -> Iterator[None]:
    """Let ``backward()`` average the gradients of shards, whatever the user's ``set_gradient_divide_factor``."""
    states = [module._get_fsdp_state() for module in _sharded_modules(network)]
    lists = [getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group] for state in states]  # torch 2.13
    factors = [(group, group.gradient_divide_factor) for groups in lists for group in groups if group is not None]
    try:
        for group, _ in factors:
            group.gradient_divide_factor = None
        yield
    finally:
        for group, factor in factors:
            group.gradient_divide_factor = factor


def check_parameters(network: nn.Module) -> None:
    """Raise ``ValueError`` that names what splits the parameters, if it is not ``fully_shard``."""
    for path, module in network.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if "FullyShardedDataParallel" in kinds:
            raise ValueError(f"{path or 'the network'} is a FullyShardedDataParallel (FSDP1){PARTS}")
        if "DeepSpeedEngine" in kinds:
            raise ValueError(f"{path or 'the network'} is a DeepSpeedEngine: {OWN_COPY}")
    supported = is_sharded(network)
    for name, parameter in network.named_parameters():
        if hasattr(parameter, "ds_id"):
            raise ValueError(f"parameter {name} is partitioned by DeepSpeed's ZeRO-3{PARTS}")
        if hasattr(parameter, "_hp_mapping"):
            raise ValueError(f"parameter {name} is trained by DeepSpeed: {OWN_COPY}")
        if _is_split(parameter) and not (supported and _is_plain(parameter)):
            raise ValueError(f"parameter {name} is split by tensor parallelism{PARTS}")


def check_processes(network: nn.Module, processes: Processes) -> None:
    """Raise ``ValueError`` if a sharded network is split over other processes than these."""
    reshard(network)
    for name, parameter in network.named_parameters():
        if _is_split(parameter) and (size := cast(Any, parameter).device_mesh.size()) != processes.count:
            raise ValueError(
                f"parameter {name} is split over {size} processes, but {processes.count} would repair together; pass "
                "the group of the network's mesh: process_group=mesh.get_group()"
            )


def _sharded_modules(network: nn.Module) -> Iterator[Any]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # who has not imported it has not sharded anything
    return (module for module in network.modules() if isinstance(module, fsdp.FSDPModule)) if fsdp else iter(())


def _is_split(tensor: Tensor) -> bool:
    return hasattr(tensor, "device_mesh")  # DTensor


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is split along one axis of its mesh, and copied along the others."""
    kinds = [type(placement).__name__ for placement in cast(Any, tensor).placements]
    return kinds.count("Shard") == 1 and kinds.count("Replicate") == len(kinds) - 1
