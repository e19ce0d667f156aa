"""Divide a network's parameters and float buffers into named groups.

The three networks of the paper have tables. Any other ``nn.Module`` gets groups derived from module types and depth:

    stem          the first layer, or everything before the first block (embeddings, class token, positions)
    block1 …      by depth: the stages or repeated layers of the network, otherwise one layer each
    norm.affine   weights and biases of every normalisation layer
    norm.stats    their running mean and variance
    head          the last linear layer (or convolution)
    buffers       float buffers that belong to no normalisation layer

A causal language model (a network that can ``generate``) has these, with its layers in three parts by depth:

    embedding         of tokens and positions
    attention.0-9 …   the attention of the layers 0 to 9
    mlp.0-9 …         everything else in these layers
    norm.affine       as above
    head              the output layer, and the embedding if the two are tied

Every tensor is in exactly one group; a tied weight is there once, under the first of its names. Names are those of
``named_parameters()`` and ``named_buffers()`` of the network itself, without the prefix of ``torch.compile`` or
``DistributedDataParallel``. A layer with adapters around it (peft) is one layer, adapters included.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from forgetless.compute.modules import generates, is_composite, is_norm, joined, unwrap
from forgetless.compute.shards import check_parameters, reshard
from forgetless.networks import MLP, VGG11, ResNet
from forgetless.repair.head import find_head

Groups = dict[str, tuple[str, ...]]

_PAPER = re.compile(r"(conv1|bn1|block\d|fc\d*)\.")  # the modules of the paper's networks
ATTENTION = ("attn", "attention")  # in the name of a module of a language model, or of its class
DEPTHS = 3  # parts into which the layers of a language model are divided
LAST = ("bn.affine", "bn.stats", "norm.affine", "norm.stats", "fc", "head", "buffers")  # after the body


def groups(model: nn.Module, head: str | None = None) -> Groups:
    """Return the groups of a network: body by depth, then normalisation, then the head.

        >>> groups(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))["head"]
        ('2.weight', '2.bias')

    Args:
        model: The network, compiled and wrapped ones included.
        head: The module of the output layer, where it cannot be recognised.

    Returns:
        ``{group: names of its tensors}``, a partition.
    """
    network = unwrap(model)
    tensors = float_tensors(network)
    if not tensors:
        raise ValueError(f"{type(network).__name__} has neither parameters nor float buffers to group")
    if isinstance(network, MLP | ResNet | VGG11) and head is None and all(map(_PAPER.match, tensors)):
        owner = {name: name.partition(".")[0] for name in tensors} | _norm_groups(network, "bn")
    else:  # a larger subclass, too
        owner = _derived_groups(network, tensors, head)
    parts: dict[str, list[str]] = {}
    for name in tensors:
        parts.setdefault(owner[name], []).append(name)
    ordered = sorted(parts, key=lambda group: LAST.index(group) if group in LAST else -1)  # the body is in order
    return {group: tuple(parts[group]) for group in ordered}


def float_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and every dense float buffer by name, tied ones once.

    Buffers with ``persistent=False`` are left out: they are caches whose shape may follow the input. Parameters that
    ``fully_shard`` splits are sharded tensors.
    """
    check_parameters(network)
    reshard(network)
    tensors: dict[str, Tensor] = dict(network.named_parameters())
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(f"parameter {name} has no shape yet: run one batch through the network first")
    caches = {joined(path, name) for path, module in network.named_modules() for name in _caches(module)}
    return tensors | {n: buffer for n, buffer in network.named_buffers() if n not in caches and _is_dense_float(buffer)}


def statistics(network: nn.Module) -> dict[nn.Module, set[str]]:
    """Return the names of the running statistics of each normalisation layer that has some."""
    own = {
        layer: {
            joined(path, name)
            for name, buffer in layer.named_buffers(recurse=False)
            if name not in _caches(layer) and _is_dense_float(buffer)
        }
        for path, layer in network.named_modules()
        if is_norm(layer)
    }
    return {layer: names for layer, names in own.items() if names}


def _caches(module: nn.Module) -> set[str]:
    """Return the names of a module's own buffers with ``persistent=False``."""
    return module._non_persistent_buffers_set


def _is_dense_float(buffer: Tensor) -> bool:
    return buffer.layout == torch.strided and buffer.is_floating_point()


def _norm_groups(network: nn.Module, prefix: str) -> dict[str, str]:
    """Return the group of each tensor of a normalisation layer."""
    owner: dict[str, str] = {}
    for path, module in network.named_modules():
        if is_norm(module):
            owner |= {joined(path, name): f"{prefix}.affine" for name, _ in module.named_parameters(recurse=False)}
            owner |= {joined(path, name): f"{prefix}.stats" for name, _ in module.named_buffers(recurse=False)}
    return owner


def _derived_groups(network: nn.Module, tensors: Mapping[str, Tensor], head: str | None) -> dict[str, str]:
    """Return the group of each tensor, derived from module types and depth."""
    parameters = {name for name, _ in network.named_parameters()}
    owner = {name: "buffers" for name in tensors if name not in parameters} | _norm_groups(network, "norm")
    output = find_head(network) if head is None else dict(network.named_modules()).get(head)
    of_head = set() if output is None else {id(parameter) for parameter in output.parameters()}
    if head is not None and not of_head:
        raise ValueError(f"head={head!r} is not a module with parameters of {type(network).__name__}")
    if not of_head:
        raise ValueError(
            f"{type(network).__name__} has no recognisable head: its last layer with parameters is not a linear layer "
            "or a convolution outside of repeated blocks. Name the module of the output layer, head='…', or give the "
            "groups, grouping={group: names}"
        )
    owner |= {name: "head" for name, tensor in tensors.items() if id(tensor) in of_head}
    if generates(network) and (layers := _attending_layers(network)):
        return _language_model_groups(tensors, layers, owner)
    units = list(_units(network, [name for name in tensors if name not in owner]))
    first_block = _first_block([module for module, _ in units])
    for i, (_, names) in enumerate(units):
        owner |= dict.fromkeys(names, "stem" if i < first_block else f"block{i - first_block + 1}")
    return owner


def _attending_layers(network: nn.Module) -> dict[str, set[str]]:
    """Return the paths of the layers of a language model, in order, with those of the attention in each."""
    layers: dict[str, set[str]] = {}
    for path, module in network.named_modules():
        if isinstance(module, nn.ModuleList) and not layers:
            for name, layer in module.named_children():
                inner = layer.named_modules(prefix=joined(path, name))
                layers[joined(path, name)] = {part for part, child in inner if part and _attends(part, child)}
            layers = layers if any(layers.values()) else {}
    return layers


def _attends(path: str, module: nn.Module) -> bool:
    names = (path.rpartition(".")[2].lower(), type(module).__name__.lower())
    return not is_norm(module) and any(word in name for name in names for word in ATTENTION)


def _language_model_groups(
    tensors: Iterable[str], layers: Mapping[str, set[str]], owner: Mapping[str, str]
) -> dict[str, str]:
    """Return the group of each tensor of a language model; ``owner`` has those of norms, buffers and the head."""
    group_of = dict.fromkeys(tensors, "embedding")
    for (layer, attention), depth in zip(layers.items(), _depths(len(layers)), strict=True):
        for name in [name for name in group_of if name.startswith(f"{layer}.")]:
            attends = any(name.startswith(f"{path}.") for path in attention)
            group_of[name] = f"{'attention' if attends else 'mlp'}.{depth}"
    return {**group_of, **owner}


def _depths(count: int) -> list[str]:
    """Return the range of layers, such as "0-9", to which each of ``count`` layers belongs."""
    parts = min(DEPTHS, count)
    part_of = [layer * parts // count for layer in range(count)]
    ranges = []
    for part in part_of:
        first, size = part_of.index(part), part_of.count(part)
        ranges.append(f"{first}-{first + size - 1}" if size > 1 else f"{first}")
    return ranges


def _units(module: nn.Module, body: Sequence[str], path: str = "") -> Iterator[tuple[nn.Module | None, list[str]]]:
    """Yield the parts of the body with their tensors: stages or repeated layers, otherwise single layers."""
    loose = [joined(path, name) for name, _ in module.named_parameters(recurse=False)]  # outside of all layers
    yield from ((None, [name]) for name in loose if name in body)
    paths = [(joined(path, name), child) for name, child in module.named_children()]
    parts = [(part, child, [name for name in body if name.startswith(f"{part}.")]) for part, child in paths]
    parts = [(part, child, names) for part, child, names in parts if names]
    are_units = _alike(child for _, child, _ in parts) >= 3
    for part, child, names in parts:
        container = isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if not are_units and is_composite(child) and (container or len(parts) == 1 or _has_repeated(child)):
            yield from _units(child, names, part)
        else:
            yield child, names


def _has_repeated(module: nn.Module) -> bool:
    """Return whether a module contains two or more sibling modules of one type that have children themselves."""
    return _alike(module.children()) >= 2 or any(map(_has_repeated, filter(is_composite, module.children())))


def _alike(modules: Iterable[nn.Module]) -> int:
    """Return the largest number of these modules that have one type and contain others."""
    return max(Counter(type(module) for module in modules if is_composite(module)).values(), default=0)


def _first_block(units: Sequence[nn.Module | None]) -> int:
    """Return where the stem ends: at the first composite unit after the first unit, otherwise after that one.

    There is no stem if the first unit is one of the repeated layers, as in T5, whose embedding is its head.
    """
    kinds = [type(unit) if unit and is_composite(unit) else None for unit in units]
    usual = max(filter(None, kinds), key=kinds.count, default=None)
    if usual and kinds[0] is usual and kinds.count(usual) > 1:
        return 0
    return next((i for i, kind in enumerate(kinds) if i and kind), 1)
