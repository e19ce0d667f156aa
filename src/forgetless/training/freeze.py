"""Freeze groups of a network after the first task of a run."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from forgetless.compute.modules import joined
from forgetless.methods import Method
from forgetless.repair.selection import Selection
from forgetless.repair.sensitivity import select


def tensors_to_freeze(
    network: nn.Module, method: Method, selection: Selection, freeze: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of the tensors in the groups ``freeze``.

    Raises:
        ValueError: A group does not exist, or nothing would be left to train or to finetune.
    """
    if not freeze:
        return ()
    listed = ", ".join(freeze)
    if method.joint:
        raise ValueError(f"freeze is {listed}, but {type(method).__name__} has no second task before which to freeze")
    groups = select(dict.fromkeys(selection.grouping, 0.0), groups=freeze)
    names = selection.names(groups)
    if {name for name, _ in network.named_parameters() if name in selection.tracked} <= set(names):
        raise ValueError(f"freeze is {listed}; nothing would be left to train")
    if selection.fixed and set(selection.chosen or ()) <= set(groups):
        chosen = ", ".join(selection.chosen or ())
        raise ValueError(f"groups is {chosen}, freeze is {', '.join(groups)}; nothing would be left to finetune")
    return tuple(names)


def set_frozen(network: nn.Module, names: Collection[str], *, frozen: bool = True) -> None:
    """Stop the gradients of these parameters and the updates of these statistics, or resume both."""
    for name, parameter in network.named_parameters():
        if name in names:
            parameter.requires_grad_(not frozen)
    for path, module in network.named_modules():
        if any(joined(path, name) in names for name, _ in module.named_buffers(recurse=False)):
            module.training = network.training and not frozen  # only this module, not those inside it
