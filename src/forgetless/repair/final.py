"""Repair a network as well as its examples allow: all groups, then only those that forget, if that is as good.

``FPF.finish`` and ``forgetless.repair`` end in this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Mapping
from functools import partial
from statistics import mean
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.modules import unwrap
from forgetless.compute.shards import compute_device
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.memory.labels import has_classes
from forgetless.memory.ragged import pass_size
from forgetless.repair.bench import Bench, Outcome, Rate, drain
from forgetless.repair.descent import sharing
from forgetless.repair.displacement import displacement, displacement_scores, highest
from forgetless.repair.finetuning import Finetuning
from forgetless.repair.freezing import movable
from forgetless.repair.held_out import BATCH, evaluating, mean_overlap, measure, parts
from forgetless.repair.objective import Objective
from forgetless.repair.recollection import Recollection
from forgetless.repair.report import ClassAccuracy, RepairedGroup, Report
from forgetless.repair.restoring import Restorer, untouched_randomness
from forgetless.repair.selection import Selection
from forgetless.repair.tuning import Tuner

ENOUGH = 0.99  # fewer groups are kept if they take back this share of the loss that repairing all takes back

Tune = Callable[[Collection[str], int], Generator[None, None, Outcome]]


def repair_fully(
    model: nn.Module,
    buffer: Buffer,
    objective: Objective,
    selection: Selection,
    *,
    before: Mapping[str, Tensor] | None,
    limit: int,
    total: int,
    tuner: Tuner,
    generator: torch.Generator,
    processes: Processes = ALONE,
    still: Collection[str] = (),
    recollection: Recollection | None = None,
    adam_below: float = 0.0,
) -> Report:
    """Repair the selected groups until the loss on the held-out examples stops falling, and return a report.

    With ``before``, the weights from before the data shifted, each group gets a score. If the selection is automatic,
    the groups with the highest scores are also repaired alone, from the same start. They are kept if that lowers the
    held-out loss as much. A repair takes about ``limit`` steps with its search, and the second one is made only if
    ``total`` leaves at least half the steps that the first one took. The tensors ``still`` do not move. If the
    accuracy on the held-out examples is below ``adam_below``, Adam repairs the network. A language model is brought
    back to what it predicted earlier, its ``recollection``.
    """
    started = time.monotonic()
    network = unwrap(model)
    by_group = _moving(network, selection, still)
    with untouched_randomness(generator):
        correct = correct_by_class(network, buffer, objective, processes)
        overlap = mean_overlap(model, buffer, objective, processes)
        scores: dict[str, float | None] = {}
        examples, rate = buffer, None
        if before is not None:
            # A language model's budget is small, so its groups are scored on the held-out sequences alone.
            scored = buffer if recollection is None else buffer.subset(slice(None, None, HELD_OUT))
            scores = displacement_scores(network, scored, objective, before, selection.grouping, processes)
            if recollection is not None:
                tuner.examples += sum(processes.gather(len(scored)))
                examples, rate = _lesson(model, buffer, objective, recollection, before, limit, tuner, processes)
        bench = Bench.for_buffer(
            model,
            buffer,
            objective,
            lambda names, descent: Finetuning(
                model, examples, names, sharing(descent, processes), objective, generator, processes=processes
            ),
            processes=processes,
        )
        tune = partial(tuner.repair_fully, bench, skip_known=True, adam_below=adam_below, rate=rate)
        work = _Work(network, (limit, total), tuner, tune)
        best = work.repair(by_group, () if selection.fixed else highest(scores))
        correct_after = correct_by_class(network, buffer, objective, processes)
        overlap_after = mean_overlap(model, buffer, objective, processes)
    return Report(
        loss_before=best.outcome.before.loss,
        loss_after=best.outcome.after.loss,
        accuracy_before=best.outcome.before.accuracy,
        accuracy_after=best.outcome.after.accuracy,
        held_out=best.outcome.before.examples,
        groups=_report_groups(network, selection, scores, best.groups if best.outcome.losses else ()),
        names=tuple(name for group in best.groups for name in by_group[group]),
        classes=tuple(
            ClassAccuracy(label, len(hits), mean(hits), mean(correct_after[label])) for label, hits in correct.items()
        ),
        examples=sum(processes.gather(len(buffer))),
        optimizer=best.outcome.rate.optimizer,
        lr=best.outcome.rate.lr,
        steps=len(best.outcome.losses),
        tried=work.steps,
        seconds=time.monotonic() - started,
        perplexity_before=best.outcome.before.perplexity,
        perplexity_after=best.outcome.after.perplexity,
        overlap_before=overlap,
        overlap_after=overlap_after,
    )


def _moving(network: nn.Module, selection: Selection, still: Collection[str]) -> dict[str, list[str]]:
    """Return the tensors that move of each selected group that has some."""
    movable_names = {group: movable(network, selection.names([group])) for group in selection.choice({})}
    moving = {group: [name for name in names if name not in still] for group, names in movable_names.items()}
    return {group: names for group, names in moving.items() if names}


def _lesson(
    model: nn.Module,
    buffer: Buffer,
    objective: Objective,
    recollection: Recollection,
    before: Mapping[str, Tensor],
    limit: int,
    tuner: Tuner,
    processes: Processes,
) -> tuple[Buffer, Rate | None]:
    """Return the buffer with what a language model predicted earlier, and the rate; the buffer as it is without that.

    The rate of Adam is such that ``limit`` steps may move a weight by a share of how far the training has moved weights
    since ``before``, in the mean. The share is the loss per token that the model has lost: 0.2 for 0.2 nats, and 1 for
    1 nat or more. It is 0 if no weight has moved, since then nothing was lost.
    """
    moved = displacement(unwrap(model), before, processes)
    if not moved:
        return buffer, Rate("adam", 0.0)
    if (taught := recollection.teach(buffer)) is None:
        return buffer, None
    lost = measure(model, buffer, objective, processes=processes).loss - recollection.loss(buffer, processes)
    tuner.measured += 1
    return taught, Rate("adam", 2 * min(max(lost, 0.0), 1.0) * moved / limit)  # annealed, the mean rate is half of it


class _Repaired(NamedTuple):
    """A repair of some groups."""

    groups: tuple[str, ...]
    outcome: Outcome

    @property
    def gain(self) -> float:
        """By how much the repair lowered the held-out loss."""
        return self.outcome.before.loss - self.outcome.after.loss


@final
class _Work:
    """Repairs of one network; ``steps`` counts the steps of all of them.

    ``tune`` repairs the tensors with the given names in about the given number of steps.
    """

    def __init__(self, network: nn.Module, limits: tuple[int, int], tuner: Tuner, tune: Tune) -> None:
        self._network, self._tuner, self._tune_names = network, tuner, tune
        self._limit, self._total = limits
        self.steps = 0

    def repair(self, groups: Mapping[str, Collection[str]], few: tuple[str, ...]) -> _Repaired:
        """Repair all groups, then only ``few`` of them from the same start, and keep the latter if it is as good."""
        few = tuple(group for group in few if group in groups)
        names = [name for members in groups.values() for name in members]
        start = Restorer(self._network, names, host=True)
        try:
            every = self._tune(groups, tuple(groups), self._limit)
            left = self._total - self.steps
            if not 0 < len(few) < len(groups) or left < self.steps / 2:
                return every
            end = Restorer(self._network, names, host=True)
            start.restore()
            fewer = self._tune(groups, few, min(left, self._limit))
            if fewer.gain >= ENOUGH * every.gain:
                return fewer
            end.restore()
            return every
        except BaseException:  # Ctrl-C too
            start.restore()
            raise

    def _tune(self, groups: Mapping[str, Collection[str]], chosen: tuple[str, ...], limit: int) -> _Repaired:
        earlier = self._tuner.steps
        names = [name for group in chosen for name in groups[group]]
        outcome = drain(self._tune_names(names, limit))
        self.steps += self._tuner.steps - earlier
        return _Repaired(chosen, outcome)


def _report_groups(
    network: nn.Module, selection: Selection, scores: Mapping[str, float | None], repaired: Collection[str]
) -> tuple[RepairedGroup, ...]:
    """Return the groups of the report; frozen ones have no parameters there."""
    parameters = dict(network.named_parameters())
    counts = {name: parameter.numel() for name, parameter in parameters.items() if parameter.requires_grad}
    sizes = {group: sum(counts.get(name, 0) for name in names) for group, names in selection.grouping.items()}
    total = sum(parameter.numel() for parameter in parameters.values())
    return tuple(
        RepairedGroup(group, scores.get(group), size, size / total, group in repaired) for group, size in sizes.items()
    )


@torch.no_grad()
def correct_by_class(
    network: nn.Module, buffer: Buffer, objective: Objective, processes: Processes = ALONE
) -> dict[int, list[float]]:
    """Return 1.0 or 0.0 for each held-out example of each class: whether it is predicted; empty without classes."""
    rows = buffer.held_out()
    if not objective.classifies(rows) or "y" not in rows or not has_classes(rows["y"]):
        return {}
    device = compute_device(network)
    pairs: list[tuple[int, float]] = []
    with evaluating(network), objective.cast(device):
        for start, stop, count in parts(network, len(rows["y"]), pass_size(rows, BATCH), processes):
            part = {name: column[start:stop].to(device) for name, column in rows.items()}
            logits = objective.output(network, objective.plain_inputs(part), part)
            hits = (logits.argmax(1) == part["y"]).float()
            pairs += list(zip(part["y"].tolist(), hits.tolist(), strict=True))[:count]
    correct: dict[int, list[float]] = {}
    for label, hit in sorted(pair for part in processes.gather(pairs) for pair in part):
        correct.setdefault(label, []).append(hit)
    return correct
