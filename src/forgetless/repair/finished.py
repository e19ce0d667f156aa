"""Repair a finished network on a few examples, without any hook in its training."""

import inspect
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.modules import padding_token, unwrap
from forgetless.compute.shards import is_sharded
from forgetless.memory.batch import role, unpack
from forgetless.memory.buffer import Buffer
from forgetless.repair.examples import fill_buffer
from forgetless.repair.final import repair_fully
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, shifts_labels
from forgetless.repair.recollection import Recollection
from forgetless.repair.report import Report
from forgetless.repair.selection import Selection
from forgetless.repair.sensitivity import changes
from forgetless.repair.settings import LANGUAGE_BATCH, Finetune
from forgetless.repair.trial import try_out
from forgetless.repair.tuning import CLIP, Tuner
from forgetless.repair.weights import match, read_weights

LEAST = 16  # examples, of which two are held out


def repair(
    model: nn.Module,
    examples: Any,
    before: Mapping[str, Tensor] | str | Path | None = None,
    *,
    steps: int = 300,
    groups: str | Collection[str] = "auto",
    grouping: Mapping[str, Collection[str]] | None = None,
    head: str | None = None,
    augment: Augment | None = None,
    loss: Loss | None = None,
    forward: Forward = call,
    autocast: torch.dtype | None = None,
    seed: int = 0,
) -> Report:
    """Repair a finished network on a few examples of its old and new data.

    The optimizer and the learning rate are found by short trials on seven of eight examples; the eighth judges. The
    repair ends when the loss on the held-out examples stops falling, and steps that did not lower it are undone. With
    the weights from before the update, each group gets the score Σ Δθ · ∇L: by how much its displacement raised the
    loss on the examples, to first order. Then the groups with the highest scores are also repaired alone. If that
    lowers the held-out loss as much, the other groups stay as they are. A causal language model is brought back to what
    it predicted before or after the update, whichever was better for a sequence.

        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> report = repair(model, (torch.rand(64, 4), torch.arange(64) % 2), steps=20)
        >>> report.loss_after <= report.loss_before
        True

    Args:
        model: Any ``nn.Module`` that returns logits, compiled and wrapped ones included. It is changed in place.
        examples: Labelled examples of the old and of the new data: the tensors ``(x, y)``, a mapping of columns, a data
            set, batches, or a ``Buffer``. See ``forgetless.repair.examples.fill_buffer``.
        before: The weights from before the update: a state dict, a .safetensors, .pt or .pth file, or a Hugging Face
            folder. Without them all groups are repaired.
        steps: The most steps of a repair; trials come on top.
        groups: "auto" (the highest scores where that is as good as all), "all", or the names of groups.
        grouping: ``{group: names of tensors}``. Default: ``forgetless.groups(model)``.
        head: The module of the output layer, where ``forgetless.groups`` cannot recognise it.
        augment: Applied to the inputs of each step.
        loss: ``(output, y) -> loss``, replaces cross-entropy; ``"model"`` is the model's own loss.
        forward: ``(model, x) -> logits``, replaces ``model(x)`` or, for a mapping, ``model(**x)``.
        autocast: The dtype of the forward pass, such as ``torch.bfloat16``.
        seed: The seed of the draws, and of augmentation and dropout during the repair.

    Returns:
        What the repair did; it prints as a table.
    """
    network = unwrap(model)
    if is_sharded(network):
        raise ValueError("the network is split by fully_shard; repair the whole network, in one process")
    objective = Objective(augment, loss, forward, autocast, shifts=shifts_labels(model))
    listed = groups if isinstance(groups, str) else tuple(groups)
    selection = Selection(network, Finetune.within(groups=listed), grouping, head)
    buffer = fill_buffer(examples, next(network.parameters()).device, seed, objective, padding_token(network))
    if len(buffer) < LEAST:
        raise ValueError(f"examples has {len(buffer)} labelled examples; a repair needs at least {LEAST}")
    earlier = None if before is None else earlier_weights(network, before)
    check_fit(model, buffer, objective, selection.names(selection.choice({})))
    assert buffer.generator is not None
    tuner = Tuner(LANGUAGE_BATCH, 0.0, clip=CLIP) if objective.shifts else Tuner(Finetune.batch, 0.0)
    recollection = None
    if objective.shifts and earlier is not None:
        recollection = Recollection(objective)
        recollection.predict_twice(model, buffer, earlier)
    return repair_fully(
        model, buffer, objective, selection, before=earlier, limit=steps, total=2 * steps,
        tuner=tuner, generator=buffer.generator, recollection=recollection,
    )  # fmt: skip


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


def check_fit(model: nn.Module, buffer: Buffer, objective: Objective, names: Collection[str]) -> None:
    """Raise ``ValueError`` if the examples do not fit the network, by one forward pass."""
    rows = {name: buffer[name] for name in buffer.columns}
    if objective.forward is call:
        _check_columns(unwrap(model), unpack(rows))
    try:
        try_out(model, objective, rows, names=names, batch=2)
    except (RuntimeError, LookupError, TypeError) as error:
        shapes = ", ".join(f"{name} {tuple(column.shape[1:])}" for name, column in rows.items() if role(name) == "x")
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"examples do not fit {type(unwrap(model)).__name__} (one has {shapes}): {reason}") from error


def _check_columns(network: nn.Module, x: Any) -> None:
    """Raise ``ValueError`` if the examples have a column of inputs that the network has no argument for."""
    signature = inspect.signature(network.forward)
    try:
        signature.bind_partial(**(x if isinstance(x, Mapping) else {}))
    except TypeError:
        raise ValueError(
            f"examples has the columns {', '.join(x)} besides the labels, but {type(network).__name__} takes "
            f"{', '.join(signature.parameters)}; name each column as the argument that it is, and leave out the others"
        ) from None
