"""Decide which tensors of a network may move: what is frozen stays frozen, and everything unchosen stays still.

Statistics of a normalisation layer (running mean and variance) move by its forward pass in training mode, weights by
gradients. Choosing a layer's statistics therefore means running that layer in training mode.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from torch import nn

from forgetless.compute.modules import unwrap
from forgetless.repair.groups import float_tensors, groups, statistics


@contextmanager
def only(model: nn.Module, names: Collection[str]) -> Iterator[list[nn.Parameter]]:
    """Let exactly the named tensors of a network move inside a ``with`` block, for a training loop of your own.

    Inside, exactly the parameters in ``names`` take gradients and exactly the statistics in ``names`` are updated. The
    network runs in training mode, so dropout is active. If it is in training mode already, its parts keep their modes;
    otherwise parts that are frozen as a whole stay in evaluation mode. On leaving, every ``requires_grad`` flag and
    every mode is restored.

        >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        >>> with only(model, ["1.weight", "1.bias"]) as parameters:
        ...     print([parameter.requires_grad for parameter in model.parameters()])
        [False, False, True, True]

    Args:
        model: The network, compiled and wrapped ones included.
        names: Names of parameters and float buffers.

    Returns:
        A context manager that yields the parameters in ``names``.
    """
    parameters = dict(unwrap(model).named_parameters())
    flags = {name: parameter.requires_grad for name, parameter in parameters.items()}
    check_names(unwrap(model), names)
    with finetuning_modes(model, names) as chosen:
        try:
            for name, parameter in parameters.items():
                parameter.requires_grad_(name in names)
            yield chosen
        finally:
            for name, parameter in parameters.items():
                parameter.requires_grad_(flags[name])


@contextmanager
def finetuning_modes(model: nn.Module, names: Collection[str]) -> Iterator[list[nn.Parameter]]:
    """Do the part of ``only`` that concerns modes, for checked names, and leave the ``requires_grad`` flags alone."""
    network = unwrap(model)
    chosen = set(names)
    modes = [(module, module.training) for module in model.modules()]
    try:
        if not network.training:
            model.train()
            for module in network.modules():
                if is_frozen(module):
                    module.eval()
        for layer, own in statistics(network).items():
            layer.training = own <= chosen
        yield [parameter for name, parameter in network.named_parameters() if name in chosen]
    finally:
        for module, mode in modes:
            module.training = mode


def unfrozen(network: nn.Module, names: Collection[str]) -> tuple[str, ...]:
    """Return ``names`` without what is frozen; raise ``ValueError`` if nothing is left."""
    check_names(network, names)
    left = movable(network, names)
    if not left:
        raise ValueError(
            f"nothing to finetune: of the {len(names)} tensors named, all are frozen (requires_grad=False, or "
            "statistics of layers in evaluation mode)"
        )
    return left


def movable(network: nn.Module, names: Collection[str]) -> tuple[str, ...]:
    """Return those of ``names`` that are not frozen, in the order of the network.

    Frozen are parameters with ``requires_grad=False``. If the network is in training mode, so are the statistics of
    layers in evaluation mode; otherwise, the statistics in parts that are frozen as a whole.
    """
    frozen = {name for name, parameter in network.named_parameters() if not parameter.requires_grad}
    if network.training:
        frozen |= resting(network)
    else:
        resting_parts = [layer for part in network.modules() if is_frozen(part) for layer in part.modules()]
        frozen.update(*(own for layer, own in statistics(network).items() if layer in resting_parts))
    wanted = set(names) - frozen
    return tuple(name for name in float_tensors(network) if name in wanted)


def resting(network: nn.Module) -> set[str]:
    """Return the names of the statistics of layers that are in evaluation mode."""
    return set().union(*(own for layer, own in statistics(network).items() if not layer.training))


def is_frozen(module: nn.Module) -> bool:
    """Return whether a module has parameters, none of which requires gradients."""
    flags = [parameter.requires_grad for parameter in module.parameters()]
    return bool(flags) and not any(flags)


def check_names(network: nn.Module, names: Collection[str]) -> None:
    """Raise ``ValueError`` if a name is not a tensor's, or if only some of the statistics of a layer are named."""
    known = float_tensors(network)
    for name in names:
        if name not in known:
            hint = ""
            with suppress(ValueError):  # this network may have no recognisable groups
                hint = f"; it is a group: forgetless.groups(model)[{name!r}]" if name in groups(network) else ""
            raise ValueError(f"the network has no parameter or float buffer named {name!r}{hint}")
    for own in statistics(network).values():
        if (missing := sorted(own - set(names))) and own & set(names):
            path = missing[0].rpartition(".")[0]
            raise ValueError(f"the statistics of {path} move together: also name {', '.join(missing)}, or none of them")
