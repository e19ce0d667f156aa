"""Repair within a budget: short repairs during training, and a thorough one at the end.

The budget is the number of examples that repairs may use per training example. Repairs during training leave a reserve
for the end. What they earn and spend is in ``account``, what a repair does is in ``tuning``, and the one at the end is
in ``final``.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import has_batch_norm, unwrap
from forgetless.compute.shards import compute_device
from forgetless.memory.batch import unpack
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.repair.account import Account
from forgetless.repair.anchor import Anchor
from forgetless.repair.bench import Bench, Outcome, drain
from forgetless.repair.descent import Descent, sharing
from forgetless.repair.final import repair_fully
from forgetless.repair.finetuning import Finetuned, Finetuning
from forgetless.repair.freezing import resting
from forgetless.repair.held_out import BATCH
from forgetless.repair.objective import Objective
from forgetless.repair.profile import Profile
from forgetless.repair.recollection import Recollection
from forgetless.repair.report import Report
from forgetless.repair.restoring import untouched_randomness
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune
from forgetless.repair.trial import try_out
from forgetless.repair.tuning import BATCH_NORM_LR, CHUNK, CLIP, LR, Tuner

EXCHANGE = 2  # steps of a user's loop between two exchanges of counts, and between two repairs
FORGOTTEN = 0.8  # below this accuracy, Adam repairs a network without batch norm at the end, unless it models language
FIRST = 64  # examples that the buffer must hold, if it can, before the first repair
FEWEST = 3  # examples that it must hold in any case: one is held out, and batch norm needs two


@final
class Upkeep:
    """The repairs of one network within a budget."""

    def __init__(
        self,
        model: nn.Module,
        settings: Finetune,
        objective: Objective,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
    ) -> None:
        self.model, self.settings, self.objective = model, settings, objective
        self._network = unwrap(model)
        self.selection = Selection(self._network, settings, grouping, head)
        self.tuner = _tuner(self._network, settings, objective)
        self._recollection = Recollection(objective)  # empty unless the network is a language model
        self.account = Account(settings, self.tuner, self._recollection, all_at_end=objective.shifts)
        self._processes = ALONE
        self.step = 0
        self.finetunings = 0  # repairs
        self.undone = 0  # repairs that were undone
        self.shifts: list[int] = []  # the steps after which the data shifted, as announced
        self.last: Report | None = None
        self._anchor = Anchor(self._network)
        self._kept: dict[Hashable, Finetuning] = {}  # in the benchmark, because making one is slow
        self._resting: set[str] = set()  # statistics of layers in evaluation mode while the network trains

    def look_again(self) -> None:
        """Note that parts of the network were frozen or replaced."""
        self._kept = {}

    def start(self) -> None:
        """Measure from the present weights how far training moves."""
        self._anchor.take(self.selection.tracked)

    def join(self, processes: Processes) -> None:
        """Repair together with these processes."""
        self._processes = self.account.processes = processes

    def advance(self, examples: int) -> bool:
        """Count a training step, and return whether the budget allows a repair after it."""
        self.step += 1
        self.account.add(examples)
        agreed = self.step % (CHUNK if self.objective.shifts else EXCHANGE) == 0
        if agreed or self._processes.count == 1:
            self.account.count()
        due = agreed and self.account.affords_repair()
        if (due or self.step == 1) and self._network.training:
            self._resting = resting(self._network)
        return due

    def boundary(self) -> None:
        """Note that the data shifts here."""
        self.shifts.append(self.step)

    def recall(self, buffer: Buffer, *, now: bool = False) -> None:
        """Note what a language model predicts for new sequences of the buffer: ``now``, or if the budget allows it."""
        due = now or not (self.step % CHUNK or self.shifts)
        if self.objective.shifts and due and (now or self.account.affords_recall(len(buffer))):
            self._recollection.predict(self.model, buffer, self._processes)

    def ready(self, buffer: Buffer) -> bool:
        """Return whether the buffer holds enough for a repair during training."""
        return len(buffer) >= max(FEWEST, min(FIRST, buffer.capacity))

    def names(self) -> tuple[str, ...]:
        """Return the tensors that a repair during training moves: all selected ones that are not frozen now."""
        self.selection = self.selection.present()
        names = self.selection.names(self.selection.movable(self.selection.choice({})))
        return tuple(name for name in names if name not in self._still())

    def why_not(self) -> str:
        """Return why nothing can be repaired."""
        return self.selection.why_not({})

    def repair(
        self,
        names: Collection[str],
        buffer: Buffer,
        generator: torch.Generator,
        engine: Engine | None = None,
        *,
        at_end: bool = False,
    ) -> Generator[None, None, Outcome | Finetuned]:
        """Repair these tensors: briefly, or ``at_end`` until the held-out loss stops falling."""
        processes, account = self._processes, self.account
        account.look(len(buffer))

        def begin(names: Collection[str], descent: Descent) -> Finetuning:
            part = sharing(descent, processes)
            make = partial(Finetuning, self.model, buffer, names, part, self.objective, generator, engine, processes)
            if engine is None or at_end or len(buffer) < buffer.capacity:
                return make()
            key = (*names, replace(part, rates=()))
            if key not in self._kept:
                self._kept[key] = make()
            return self._kept[key].restart(part)

        bench = Bench.for_buffer(self.model, buffer, self.objective, begin, engine, processes)
        if at_end:
            done: Outcome | Finetuned = yield from self.tuner.repair_fully(bench, names, account.limit())
        else:
            if self.tuner.measures:
                yield  # before it reads from the GPU
                self.tuner.allow_for(max(processes.gather(_scale(buffer, self.objective, self._network))))
            done = yield from self.tuner.repair_briefly(bench, names, account.steps(), account.batch)
        self.finetunings += 1
        self.undone += not done.losses
        return done

    def finetune(self, buffer: Buffer, generator: torch.Generator) -> Outcome | Finetuned | None:
        """Repair during training, unless everything is frozen, and leave the user's random states as they are."""
        measures = self.tuner.measures
        names = self._checked_names(buffer) if measures else self.names()
        if not names:
            return None
        if measures:
            self._anchor.settle()
        with untouched_randomness(generator):
            done = drain(self.repair(names, buffer, generator))
        if self.tuner.measures:  # next time
            self.start()
        return done

    def finish(self, buffer: Buffer, generator: torch.Generator) -> Report | None:
        """Repair at the end, unless everything is frozen, and return a report."""
        self.account.count()
        if not self._checked_names(buffer):
            return None
        if not self.step:  # the buffer holds examples from outside the training
            self.start()
        self.account.look(len(buffer))
        if recalls := self._recollection.predicted > 0:  # otherwise there is nothing earlier to go back to
            self.recall(buffer, now=True)
        limit = self.account.limit()
        report = repair_fully(
            self.model, buffer, self.objective, self.selection, before=self._anchor.before(), limit=limit,
            total=limit, tuner=self.tuner, generator=generator, processes=self._processes, still=self._still(),
            recollection=self._recollection if recalls and self.step else None,
            adam_below=0.0 if self.objective.shifts or has_batch_norm(self._network) else FORGOTTEN,
        )  # fmt: skip
        self.last = replace(report, cost=self.account.cost)
        self.finetunings += 1
        self.undone += not self.last.steps
        self.start()
        return self.last

    def sensitivities(self) -> dict[str, float]:
        """Return no S_g: repairs within a budget do not need it, so it is not tracked."""
        return {}

    def profile(self) -> Profile:
        """Return the groups, their scores at the last ``finish``, and what all repairs did and cost."""
        scores = {} if self.last is None else {group.name: group.score for group in self.last.groups}
        chosen = self.selection.choice({}) if self.last is None else self.last.repaired
        note = f"repairs: {self.finetunings}, undone: {self.undone}"
        if (cost := self.account.cost) is not None:
            note += f", cost: {cost:.2f} × the training"
        return self.selection.describe(scores, chosen, note=note)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later steps depend on, besides the network and the buffer."""
        return {
            "step": self.step,
            "repairs": self.finetunings,
            "undone": self.undone,
            "shifts": list(self.shifts),
            "resting": sorted(self._resting),
            "anchor": dict(self._anchor.held),
            "settled": self._anchor.settled,
            **self.account.state_dict(),
            "tuner": self.tuner.state_dict(),
            "recollection": self._recollection.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``. The network may have grown since, and the budget may be another."""
        self._anchor.load(state["anchor"], settled=state["settled"])  # first, since this also checks the network
        self.tuner.load_state_dict(state["tuner"])
        self._recollection.load_state_dict(state["recollection"])
        self.step, self.finetunings, self.undone = state["step"], state["repairs"], state["undone"]
        self.shifts, self._resting = list(state["shifts"]), set(state["resting"])
        self.account.load_state_dict(state)

    def _still(self) -> set[str]:
        """Return the statistics that do not move in training, although the network's modes do not say so now."""
        return set() if self._network.training else self._resting  # being tested, all layers are in evaluation mode

    def _checked_names(self, buffer: Buffer) -> tuple[str, ...]:
        """Return ``names()``; raise an error if the examples do not fit the network."""
        if names := self.names():
            rows = {name: buffer[name] for name in buffer.columns}
            try_out(self.model, self.objective, rows, names=names, batch=2, distill=self.settings.distill)
        return names


@torch.no_grad()
def _scale(buffer: Buffer, objective: Objective, network: nn.Module) -> float:
    """Return the largest mean square of an input, which batch norm would scale, or of numbers to predict; else 0."""
    device = compute_device(network)
    rows = {name: buffer[name][::HELD_OUT][:BATCH].clone().to(device) for name in buffer.columns}
    values = [unpack(rows, "y")] if has_batch_norm(network) else [objective.plain_inputs(rows), unpack(rows, "y")]
    parts = [part for value in values for part in (value.values() if isinstance(value, Mapping) else [value])]
    numbers = [part.float() for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    known = [number[number.isfinite()] for number in numbers]  # NaN: no label; a mask may be infinite
    return max((number.square().mean().item() for number in known if number.numel()), default=0.0)


def _tuner(network: nn.Module, settings: Finetune, objective: Objective) -> Tuner:
    """Return a tuner with the rates of networks with or without batch norm, and the clipping of language models."""
    clip = CLIP if objective.shifts else None
    return Tuner(settings.batch, settings.distill, BATCH_NORM_LR if has_batch_norm(network) else LR, clip)
