"""Find the head of a network: its output layer."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from torch import nn
from torch.optim.swa_utils import AveragedModel

from forgetless.compute.modules import has_parameters, is_composite, is_linear, is_norm, joined

Chain = tuple[nn.Module, ...]  # nested modules, from the network inward

HEAD_NAMES = (
    "head", "heads", "fc", "classifier", "lm_head", "score", "out", "output", "output_layer", "logits", "final",
)  # fmt: skip
AMBIGUOUS = ("fc", "out", "output", "final")  # names that layers in the middle have too


def find_head(network: nn.Module) -> nn.Module | None:
    """Return the output layer, or None if it cannot be recognised.

    It is the last linear layer below a child with a usual name. Without such a child it is the last layer of the
    network, if that is linear and neither part of a repeated block nor next to a matrix that could multiply its output.
    """
    children = dict(network.named_children())
    if len(children) == 1 and is_composite(network) and not has_parameters(network):  # a wrapper, such as peft's
        return find_head(*children.values())
    copies = _copies(children)
    layers = list(_layers((network,), "", copies))
    linear = [(path, chain) for path, chain in layers if is_linear(chain[-1])]
    if usual := [(path, chain) for path, chain in linear if path.partition(".")[0] in HEAD_NAMES]:
        path, chain = usual[-1]
        name = path.partition(".")[0]
        return _last_fed(chain[-1], name, children) if name in AMBIGUOUS else chain[-1]
    if not linear or layers[-1] != linear[-1]:
        return None
    chain = linear[-1][1]
    return None if _feeds_a_matrix(chain) or _in_repeated(chain, copies) else chain[-1]


def _copies(children: Mapping[str, nn.Module]) -> set[nn.Module]:
    """Return those of a network's children that are averages of the network, or a frozen copy next to it."""
    frozen = {child: not any(p.requires_grad for p in child.parameters()) for child in children.values()}
    return {
        child
        for name, child in children.items()
        if isinstance(child, AveragedModel)
        or (frozen[child] and not all(frozen.values()) and is_composite(child) and name not in HEAD_NAMES)
    }


def _last_fed(layer: nn.Module, name: str, children: Mapping[str, nn.Module]) -> nn.Module:
    """Return the last of the linear layers that ``layer`` feeds, one after the other, after the child ``name``."""
    for child in list(children.values())[list(children).index(name) + 1 :]:
        if isinstance(child, nn.Linear) and isinstance(layer, nn.Linear) and child.in_features == layer.out_features:
            layer = child
    return layer


def _feeds_a_matrix(chain: Chain) -> bool:
    """Return whether a module around the last of these holds a matrix that could multiply the layer's output."""
    *around, layer = chain
    matrices = [p for module in around for p in module.parameters(recurse=False) if p.ndim == 2]
    return any(getattr(layer, "out_features", None) in matrix.shape for matrix in matrices)


def _layers(chain: Chain, path: str, copies: Collection[nn.Module]) -> Iterator[tuple[str, Chain]]:
    """Yield each layer below the last module of ``chain``: its path, and the modules around it with itself."""
    composite = is_composite(chain[-1])
    if has_parameters(chain[-1], recurse=not composite):
        yield path, chain
    for name, child in chain[-1].named_children() if composite else ():
        if child not in copies and not is_norm(child):
            yield from _layers((*chain, child), joined(path, name), copies)


def _in_repeated(chain: Chain, copies: Collection[nn.Module]) -> bool:
    """Return whether the last of these nested modules is part of one of several sibling layers of one type."""
    return any(
        is_composite(part) and sum(type(s) is type(part) for s in parent.children() if s not in copies) > 1
        for parent, part in pairwise(chain)
    )
