"""Divide a network's parameters and float buffers into named groups.

The three networks of the paper have tables. Any other ``nn.Module`` gets groups derived from module types and depth:

    stem          the first layer, or everything before the first block (embeddings, class token, positions)
    block1 …      by depth: the stages or repeated layers of the network, otherwise one layer each
    norm.affine   weights and biases of every normalisation layer
    norm.stats    their running mean and variance
    head          the last linear layer (or convolution)
    buffers       float buffers that belong to no normalisation layer

Every tensor is in exactly one group; a tied weight is there once, under the first of its names. Names are those of
``named_parameters()`` and ``named_buffers()`` of the network itself, without the prefix of ``torch.compile`` or
``DistributedDataParallel``. A layer with adapters around it (peft) is one layer, adapters included.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel

from forgetless.compute.modules import joined, unwrap
from forgetless.networks import MLP, VGG11, ResNet

Groups = dict[str, tuple[str, ...]]

_SHARDED = ", so each process has only a part of the weights; use DistributedDataParallel, which leaves them whole"
_BATCH_NORM = r"(.*\.)?(bn\d|shortcut\.1)"
TABLES: Mapping[type[nn.Module], tuple[tuple[str, str], ...]] = {
    MLP: ((r"\1", r"(fc\d+)\..*"),),
    ResNet: (
        ("bn.affine", _BATCH_NORM + r"\.(weight|bias)"),
        ("bn.stats", _BATCH_NORM + r"\.running_(mean|var)"),
        (r"\1", r"(conv1|block\d|fc)\..*"),
    ),
    VGG11: ((r"\1", r"(conv1|block\d|fc\d)\..*"),),
}

HEAD_NAMES = (
    "head", "heads", "fc", "classifier", "lm_head", "score", "out", "output", "output_layer", "logits", "final",
)  # fmt: skip
AMBIGUOUS = ("fc", "out", "output", "final")  # names that layers in the middle have too


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
    for kind, table in TABLES.items():
        if isinstance(network, kind) and head is None and (parts := _by_table(tensors, table)):
            return _sorted(parts)
    return _sorted(_derived(network, tensors, head))


def float_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return every parameter and every float buffer by name, tied ones once.

    Buffers with ``persistent=False`` are left out: they are caches whose shape may follow the input. Sparse buffers,
    such as the edges of a graph, are left out too.
    """
    tensors: dict[str, Tensor] = dict(network.named_parameters())
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(f"parameter {name} has no shape yet: run one batch through the network first")
        if hasattr(tensor, "device_mesh"):  # DTensor
            raise ValueError(f"parameter {name} is sharded{_SHARDED}")
    modules = list(network.named_modules())
    for path, module in modules:
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ValueError(f"{path or 'the network'} is a FullyShardedDataParallel{_SHARDED}")
    caches = {joined(path, name) for path, module in modules for name in module._non_persistent_buffers_set}
    buffers = ((name, buffer) for name, buffer in network.named_buffers() if name not in caches)
    dense = ((name, buffer) for name, buffer in buffers if buffer.layout == torch.strided)
    tensors.update((name, buffer) for name, buffer in dense if buffer.is_floating_point())
    return tensors


def parameter_counts(model: nn.Module, groups: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Return the number of parameters in each group; buffers, such as batch-norm statistics, do not count."""
    sizes = {name: parameter.numel() for name, parameter in unwrap(model).named_parameters()}
    return {group: sum(sizes.get(name, 0) for name in names) for group, names in groups.items()}


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is a normalisation layer: one of torch's or a subclass, or a leaf that looks like one."""
    if parametrize.is_parametrized(module):
        return False
    if isinstance(module, _NormBase | nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return True
    vectors = all(sum(size > 1 for size in p.shape) <= 1 for p in module.parameters(recurse=False))
    return "norm" in type(module).__name__.lower() and not _is_composite(module) and vectors


def statistics(path: str, module: nn.Module) -> set[str]:
    """Return the names of the running statistics of a normalisation layer; none for another module."""
    if not is_norm(module) or "parametrizations" in path.split("."):  # a spectral norm's vectors belong to its weight
        return set()
    caches = module._non_persistent_buffers_set
    buffers = ((name, buffer) for name, buffer in module.named_buffers(recurse=False) if name not in caches)
    return {joined(path, name) for name, buffer in buffers if buffer.is_floating_point()}


def _by_table(tensors: Mapping[str, Tensor], table: tuple[tuple[str, str], ...]) -> dict[str, list[str]]:
    """Return groups by the first pattern that fits a name; none if a name fits no pattern, as in a larger subclass."""
    parts: dict[str, list[str]] = {}
    for name in tensors:
        matches = ((re.fullmatch(pattern, name), group) for group, pattern in table)
        match, group = next(((match, group) for match, group in matches if match), (None, ""))
        if match is None:
            return {}
        parts.setdefault(match.expand(group), []).append(name)
    return parts


def _derived(network: nn.Module, tensors: Mapping[str, Tensor], head: str | None) -> dict[str, list[str]]:
    """Return groups derived from module types and depth."""
    parameters = {name for name, _ in network.named_parameters()}
    owner: dict[str, str] = {}  # tensor -> group, for the groups that module types decide
    for path, module in network.named_modules():
        if is_norm(module) and "parametrizations" not in path.split("."):  # not the _SpectralNorm of a layer's weight
            names = [*dict(module.named_parameters(recurse=False)), *dict(module.named_buffers(recurse=False))]
            for name in [joined(path, name) for name in names]:
                if name in tensors:
                    owner[name] = "norm.affine" if name in parameters else "norm.stats"
    owner.update((name, "buffers") for name in tensors if name not in parameters and name not in owner)
    path = _head(network, head)
    of_head = {id(tensor) for tensor in network.get_submodule(path).parameters()}
    owner.update((name, "head") for name, tensor in tensors.items() if id(tensor) in of_head)

    body = [name for name in tensors if name not in owner]
    units: dict[str, list[str]] = {}
    paths = list(_units(network, "", set(body)))
    modules = {path for path, _ in network.named_modules()}
    for name in body:
        units.setdefault(next(path for path in paths if _below(name, path)), []).append(name)
    ordered = [path for path in paths if path in units]
    first_block = _first_block([network.get_submodule(path) if path in modules else None for path in ordered])
    parts: dict[str, list[str]] = {}
    for i, path in enumerate(ordered):
        group = "stem" if i < first_block else f"block{i - first_block + 1}"
        parts.setdefault(group, []).extend(units[path])
    for name, group in owner.items():
        parts.setdefault(group, []).append(name)
    return parts


def _head(network: nn.Module, head: str | None) -> str:
    """Return the path of the output layer: ``head``, or the last linear layer below a child with a usual name, or of
    the whole network.
    """
    paths = {path for path, _ in network.named_modules()}
    if head is not None:
        if head not in paths or not any(True for _ in network.get_submodule(head).parameters()):
            raise ValueError(f"head={head!r} is not a module with parameters of {type(network).__name__}")
        return head
    adapted = [path for path, module in network.named_modules() if _adapted(module) is not None]
    layers: list[tuple[str, nn.Module]] = [
        (path, module)
        for path, module in network.named_modules(remove_duplicate=False)
        if path in adapted or any(True for _ in module.parameters(recurse=False)) or parametrize.is_parametrized(module)
        if not is_norm(module) and "parametrizations" not in path.split(".")
        if path in adapted or not any(_below(path, other) for other in adapted)
    ]
    copies = _copies(network)
    layers = [(path, module) for path, module in layers if not any(_below(path, copy) for copy in copies)]
    linear = [path for path, module in layers if _is_linear(module)]
    inside = _wrapped(network)
    usual = [path for path in linear if _below(path, inside) and _child(path, inside) in HEAD_NAMES]
    if usual:
        return _last_of_chain(network, usual[-1], inside)
    last = linear[-1] if linear and layers[-1][0] == linear[-1] else None
    if last is not None and not _in_repeated(network, last, copies) and not _feeds_a_matrix(network, last):
        return last
    raise ValueError(
        f"{type(network).__name__} has no recognisable head: its last layer with parameters is not a linear layer or a "
        "convolution outside of repeated blocks. Name the module of the output layer, head='…', or give the groups, "
        "grouping={group: names}"
    )


def _copies(network: nn.Module) -> list[str]:
    """Return the paths of children that are not trained: averages of the network, or a frozen copy next to it."""
    children = list(network.named_children())
    frozen = [not any(p.requires_grad for p in child.parameters()) for _, child in children]
    return [
        name
        for (name, child), fixed in zip(children, frozen, strict=True)
        if isinstance(child, AveragedModel)
        or (fixed and not all(frozen) and _is_composite(child) and name not in HEAD_NAMES)
    ]


def _feeds_a_matrix(network: nn.Module, path: str) -> bool:
    """Return whether a module around a layer has a matrix of its own that could multiply the layer's output."""
    width = getattr(network.get_submodule(path), "out_features", None)
    parts = path.split(".") if path else []
    around = [network.get_submodule(".".join(parts[:i])) for i in range(len(parts))]
    return any(p.ndim == 2 and width in p.shape for module in around for p in module.parameters(recurse=False))


def _last_of_chain(network: nn.Module, path: str, inside: str) -> str:
    """Return ``path``, or if its name is ambiguous, the last linear layer that it feeds."""
    layer, children = network.get_submodule(path), list(network.get_submodule(inside).named_children())
    names = [name for name, _ in children]
    if (name := _child(path, inside)) not in AMBIGUOUS or name not in names:
        return path
    for later, child in children[names.index(name) + 1 :]:
        if isinstance(layer, nn.Linear) and isinstance(child, nn.Linear) and child.in_features == layer.out_features:
            path, layer = joined(inside, later), child
    return path


def _wrapped(network: nn.Module) -> str:
    """Return the path of the network inside modules that only wrap it, as peft's models do."""
    path, children = "", list(network.named_children())
    while len(children) == 1 and not any(True for _ in network.parameters(recurse=False)):
        name, network = children[0]
        path = joined(path, name)
        children = list(network.named_children())
    return path


def _child(path: str, parent: str) -> str:
    """Return the name of the child of ``parent`` that contains ``path``."""
    return path.removeprefix(f"{parent}." if parent else "").split(".")[0]


def _adapted(module: nn.Module) -> nn.Module | None:
    """Return the layer inside peft's adapters, or next to the copy that is trained in its place."""
    children = dict(module.named_children())
    layer = children.get("base_layer", children.get("original_module"))
    return None if layer is None or _is_composite(layer) else layer


def _is_linear(module: nn.Module) -> bool:
    adapted = _adapted(module)
    module = module if adapted is None else adapted
    kinds = nn.Linear | nn.Bilinear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    return isinstance(module, kinds) or "linear" in type(module).__name__.lower()


def _units(module: nn.Module, path: str, body: set[str]) -> Iterator[str]:
    """Yield the paths of the parts of the body, in order: stages or repeated layers, otherwise single layers."""
    yield from (joined(path, name) for name, _ in module.named_parameters(recurse=False))
    children = [(joined(path, name), child) for name, child in module.named_children()]
    children = [(part, child) for part, child in children if any(_below(tensor, part) for tensor in body)]
    repeated = Counter(type(child) for _, child in children if _is_composite(child))
    stages = max(repeated.values(), default=0) >= 3
    for child_path, child in children:
        plain = isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        if not stages and _is_composite(child) and (plain or len(children) == 1 or _has_repeated(child)):
            yield from _units(child, child_path, body)
        else:
            yield child_path


def _has_repeated(module: nn.Module) -> bool:
    """Return whether a module contains two or more sibling modules of one type that have children themselves."""
    if not _is_composite(module):
        return False
    kinds = Counter(type(child) for child in module.children() if _is_composite(child))
    return max(kinds.values(), default=0) >= 2 or any(map(_has_repeated, module.children()))


def _first_block(units: Sequence[nn.Module | None]) -> int:
    """Return where the stem ends: at the first composite unit after the first unit, otherwise after that one.

    There is no stem if the first unit is one of the repeated layers, as in T5, whose embedding is its head.
    """
    kinds = [type(unit) if unit and _is_composite(unit) else None for unit in units]
    usual = max(filter(None, kinds), key=kinds.count, default=None)
    if usual and kinds[0] is usual and kinds.count(usual) > 1:
        return 0
    return next((i for i, kind in enumerate(kinds) if i and kind), 1)


def _in_repeated(network: nn.Module, path: str, copies: Sequence[str]) -> bool:
    """Return whether a module is part of one of several sibling layers of one type."""
    parts = path.split(".") if path else []
    for i in range(len(parts)):
        above = ".".join(parts[:i])
        part = network.get_submodule(".".join(parts[: i + 1]))
        siblings = network.get_submodule(above).named_children()
        alike = [name for name, child in siblings if type(child) is type(part) and joined(above, name) not in copies]
        if _is_composite(part) and len(alike) > 1:
            return True
    return False


def _is_composite(module: nn.Module) -> bool:
    """Return whether a module contains others; a layer with a parametrization or adapters is one layer."""
    if _adapted(module) is not None:
        return False
    return any(name != "parametrizations" for name, _ in module.named_children())


def _below(name: str, path: str) -> bool:
    return not path or name == path or name.startswith(f"{path}.")


def _sorted(parts: Mapping[str, list[str]]) -> Groups:
    """Return the groups in order: body by depth, normalisation, head, other buffers."""

    def key(group: str) -> tuple[int, int]:
        stem, number = re.fullmatch(r"(.*?)(\d*)", group).groups()  # type: ignore[union-attr]
        kinds = ("stem", "conv", "block", "bn.affine", "bn.stats", "norm.affine", "norm.stats", "fc", "head", "buffers")
        return kinds.index(stem), int(number or 0)

    return {group: tuple(parts[group]) for group in sorted(parts, key=key)}
