"""Repair a finished network on a few examples, without any hook in its training."""

import time
from collections.abc import Collection, Mapping
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.repair.buffer import Buffer
from forgetless.repair.displacement import displacement_scores, highest
from forgetless.repair.examples import fill_buffer
from forgetless.repair.finetune import Finetuning
from forgetless.repair.held_out import evaluating, measure
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, unpack
from forgetless.repair.repairer import drain
from forgetless.repair.report import ClassAccuracy, RepairedGroup, Report
from forgetless.repair.restoring import Restorer, untouched_randomness
from forgetless.repair.selection import Selection
from forgetless.repair.sensitivity import changes
from forgetless.repair.settings import Finetune
from forgetless.repair.trial import try_out
from forgetless.repair.tuning import Bench, Outcome, Rate, Tuner
from forgetless.repair.weights import match, read_weights

LEAST = 16  # examples, of which two are held out
BATCH = 32  # examples per step
ENOUGH = 0.99  # fewer groups are kept if they take back this share of the loss that repairing all takes back
PART = 256  # examples per forward pass that only measures


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
    lowers the held-out loss as much, the other groups stay as they are.

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
    started = time.monotonic()
    network = unwrap(model)
    objective = Objective(augment, loss, forward, autocast)
    listed = groups if isinstance(groups, str) else tuple(groups)
    selection = Selection(network, Finetune.within(groups=listed), grouping, head)
    buffer = fill_buffer(examples, next(network.parameters()).device, seed)
    if len(buffer) < LEAST:
        raise ValueError(f"examples has {len(buffer)} labelled examples; a repair needs at least {LEAST}")
    earlier = None if before is None else earlier_weights(network, before)
    by_group = {group: selection.names([group]) for group in selection.choice({})}
    check_fit(model, buffer, objective, selection.names(by_group))
    assert buffer.generator is not None
    with untouched_randomness(buffer.generator):
        correct = correct_by_class(network, buffer, objective)
        scores: dict[str, float | None] = {}
        if earlier is not None:
            scores = displacement_scores(network, buffer, objective, earlier, selection.grouping)
        work = _Work(model, buffer, objective, steps)
        best = work.repair(by_group, highest(scores) if groups == "auto" else ())
        correct_after = correct_by_class(network, buffer, objective)
    return Report(
        loss_before=best.outcome.before.loss,
        loss_after=best.outcome.after.loss,
        accuracy_before=best.outcome.before.accuracy,
        accuracy_after=best.outcome.after.accuracy,
        held_out=best.outcome.before.examples,
        groups=_report_groups(network, selection, scores, best.groups),
        classes=tuple(
            ClassAccuracy(label, len(hits), mean(hits), mean(correct_after[label])) for label, hits in correct.items()
        ),
        examples=len(buffer),
        optimizer=best.rate.optimizer,
        lr=best.rate.lr,
        steps=len(best.outcome.losses),
        tried=work.steps,
        seconds=time.monotonic() - started,
    )


class _Repaired(NamedTuple):
    """A repair of some groups, and the rate that its trials found."""

    groups: tuple[str, ...]
    outcome: Outcome
    rate: Rate

    @property
    def gain(self) -> float:
        """By how much the repair lowered the held-out loss."""
        return self.outcome.before.loss - self.outcome.after.loss


@final
class _Work:
    """Repairs of one network on one buffer; ``steps`` counts the steps of all of them."""

    def __init__(self, model: nn.Module, buffer: Buffer, objective: Objective, limit: int) -> None:
        self._network, self._limit = unwrap(model), limit
        generator = buffer.generator
        assert generator is not None
        self._bench = Bench(
            lambda names, descent: Finetuning(model, buffer, names, descent, objective, generator),
            lambda: measure(model, buffer, objective),
        )
        self.steps = 0

    def repair(self, groups: Mapping[str, Collection[str]], few: tuple[str, ...]) -> _Repaired:
        """Repair all groups, then only ``few`` from the same start, and keep the latter if it is as good."""
        names = [name for members in groups.values() for name in members]
        start = Restorer(self._network, names)
        try:
            every = self._tune(groups, tuple(groups))
            if not 0 < len(few) < len(groups):
                return every
            end = Restorer(self._network, names)
            start.restore()
            fewer = self._tune(groups, few)
            if fewer.gain >= ENOUGH * every.gain:
                return fewer
            end.restore()
            return every
        except BaseException:  # Ctrl-C too
            start.restore()
            raise

    def _tune(self, groups: Mapping[str, Collection[str]], chosen: tuple[str, ...]) -> _Repaired:
        tuner = Tuner(BATCH, 0.0)
        outcome = drain(tuner.repair(self._bench, [name for group in chosen for name in groups[group]], self._limit))
        self.steps += tuner.steps
        assert tuner.rate is not None
        return _Repaired(chosen, outcome, tuner.rate)


def _report_groups(
    network: nn.Module, selection: Selection, scores: Mapping[str, float | None], repaired: Collection[str]
) -> tuple[RepairedGroup, ...]:
    """Return the groups of the report; frozen ones have no parameters there."""
    counts = {name: parameter.numel() for name, parameter in network.named_parameters()}
    sizes = {group: sum(counts.get(name, 0) for name in names) for group, names in selection.grouping.items()}
    total = sum(counts.values())
    return tuple(
        RepairedGroup(group, scores.get(group), size, size / total, group in repaired) for group, size in sizes.items()
    )


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
    try:
        try_out(model, objective, rows, names=names, batch=2)
    except (RuntimeError, LookupError) as error:
        shapes = ", ".join(f"{name} {tuple(column.shape[1:])}" for name, column in rows.items() if name[0] == "x")
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"examples do not fit {type(unwrap(model)).__name__} (one has {shapes}): {reason}") from error


@torch.no_grad()
def correct_by_class(network: nn.Module, buffer: Buffer, objective: Objective) -> dict[int, list[float]]:
    """Return 1.0 or 0.0 for each held-out example of each class: whether it is predicted; empty without classes."""
    rows = buffer.held_out()
    if objective.loss is not None or rows["y"].ndim != 1 or rows["y"].is_floating_point():
        return {}
    device = next(network.parameters()).device
    correct: dict[int, list[float]] = {}
    with evaluating(network):
        for start in range(0, len(rows["y"]), PART):
            part = {name: column[start : start + PART].to(device) for name, column in rows.items()}
            hits = (objective.output(network, unpack(part), part).argmax(1) == part["y"]).float().tolist()
            for label, hit in zip(part["y"].tolist(), hits, strict=True):
                correct.setdefault(label, []).append(hit)
    return dict(sorted(correct.items()))
