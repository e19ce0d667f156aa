"""Repair a finished network on a few examples, without any hook in its training."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.repair.buffer import Buffer
from forgetless.repair.examples import fill_buffer
from forgetless.repair.finetune import Finetuned, finetune
from forgetless.repair.groups import groups as group_names
from forgetless.repair.objective import Forward, Loss, Objective, call, check_labels, unpack
from forgetless.repair.sensitivity import changes
from forgetless.repair.weights import match, read_weights


def repair(
    model: nn.Module,
    examples: Any,
    before: Mapping[str, Tensor] | str | Path | None = None,
    *,
    groups: str | Collection[str] = "auto",
    loss: Loss | None = None,
    forward: Forward = call,
    seed: int = 0,
) -> Finetuned:
    buffer = fill_buffer(examples, next(unwrap(model).parameters()).device, seed)
    earlier = None if before is None else earlier_weights(model, before)
    check_fit(model, buffer, Objective(None, loss, forward, None))
    names = [name for members in group_names(model).values() for name in members]
    return finetune(model, buffer, names, steps=100, loss=loss, forward=forward)


def earlier_weights(model: nn.Module, before: Mapping[str, Tensor] | str | Path) -> dict[str, Tensor]:
    """Return the weights from before the update, checked: they fit the network, and the network moved since."""
    earlier = match(model, read_weights(before, "before"), "before")
    network = unwrap(model)
    now = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    if not any(bool(change) for change in changes(now, earlier).values()):
        raise ValueError(
            "before holds the network's present weights; it must hold those from before the update (a state dict of "
            "the same network follows it: copy.deepcopy(model.state_dict()))"
        )
    return earlier


@torch.no_grad()
def check_fit(model: nn.Module, buffer: Buffer, objective: Objective) -> None:
    """Raise ``ValueError`` if the examples do not fit the network, which is called with two of them."""
    network = unwrap(model)
    device = next(network.parameters()).device
    rows = {name: buffer[name][:2].to(device) for name in buffer.columns}
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        logits = objective.forward(network, unpack(rows))
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        shapes = ", ".join(f"{name} {tuple(column.shape[1:])}" for name, column in rows.items() if name != "y")
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"examples do not fit {type(network).__name__} (one has {shapes}): {reason}") from error
    finally:
        for module, mode in modes:
            module.training = mode
    if objective.loss is None:
        check_labels(buffer["y"], logits)
