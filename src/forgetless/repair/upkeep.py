"""Repair within a budget: short repairs during training, and a thorough one at the end.

The budget is the number of examples that repairs may use per training example. Repairs during training leave a reserve
for the end. What a repair does is in ``tuning``; the one at the end is in ``final``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, final
from warnings import warn

import torch
from torch import nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import has_batch_norm, unwrap
from forgetless.memory.buffer import HELD_OUT, Buffer
from forgetless.repair.anchor import Anchor
from forgetless.repair.descent import Descent, sharing
from forgetless.repair.final import repair_fully
from forgetless.repair.finetune import Finetuned, Finetuning
from forgetless.repair.freezing import resting
from forgetless.repair.objective import Objective
from forgetless.repair.profile import Profile
from forgetless.repair.recollection import Recollection
from forgetless.repair.report import Report
from forgetless.repair.restoring import untouched_randomness
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune
from forgetless.repair.trial import try_out
from forgetless.repair.tuning import BATCH_NORM_LR, CHUNK, CLIP, LONG, LR, SHORT, Bench, Outcome, Tuner, drain

RESERVE = 100  # steps for the end, even if less of the budget is left; repairs during training leave them over
PASSES = 9  # over the buffer for the end, if they take more steps than that
LANGUAGE_RESERVE = 60  # steps for the end, of causal language models
EXCHANGE = 2  # steps of a user's loop between two exchanges of counts, and between two repairs
SHARE = 0.75  # the largest share of the budget that repairs during training leave over
RECALL = 1 / 3  # of the budget, for predictions of new sequences by a language model until a shift is announced
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
        assert settings.budget is not None
        self.model, self.settings, self.objective = model, settings, objective
        self._network, self._budget = unwrap(model), settings.budget
        self.selection = Selection(self._network, settings, grouping, head)
        self.tuner = _tuner(self._network, settings, objective)
        self._recollection = Recollection(objective)  # empty unless the network is a language model
        self._processes = ALONE
        self.step = 0
        self.trained = 0  # examples of the training so far, in all processes
        self._uncounted = 0  # examples of this process since then
        self.largest = 0  # examples of the largest training step so far, in this process
        self._largest_together = 0  # the sum over processes, as of the last count
        self.finetunings = 0  # repairs
        self.undone = 0  # repairs that were undone
        self._due_from = 0.0  # no repair is due before the training had this number of examples
        self.shifts: list[int] = []  # the steps after which the data shifted, as announced
        self.last: Report | None = None
        self._held = 0  # examples of the buffer at the last repair
        self._anchor = Anchor(self._network)
        self._resting: set[str] = set()  # statistics of layers in evaluation mode while the network trains

    def start(self) -> None:
        """Measure from the present weights how far training moves."""
        self._anchor.take(self.selection.tracked)

    def join(self, processes: Processes) -> None:
        """Repair together with these processes."""
        self._processes = processes

    def advance(self, examples: int) -> bool:
        """Count a training step, and return whether the budget allows a repair after it."""
        self.step += 1
        self._uncounted += examples
        self.largest = max(self.largest, examples)
        agreed = self.step % (CHUNK if self.objective.shifts else EXCHANGE) == 0
        if agreed or self._processes.count == 1:
            self._count()
        due = agreed and self.trained >= self._due_from and self.affords_repair()
        if (due or self.step == 1) and self._network.training:
            self._resting = resting(self._network)
        return due

    def boundary(self) -> None:
        """Note that the data shifts here."""
        self.shifts.append(self.step)

    def recall(self, buffer: Buffer, *, now: bool = False) -> None:
        """Note what a language model predicts for new sequences of the buffer: ``now``, or if the budget allows it."""
        if self.objective.shifts and (now or not (self.step % CHUNK or self.shifts)):
            most = self._recollection.predicted + sum(self._processes.gather(len(buffer)))
            if now or most / 3 <= RECALL * self._budget * self.trained:
                self._recollection.predict(self.model, buffer, self._processes)

    def affords_repair(self) -> bool:
        """Return whether the budget allows a repair during training now. That of a language model is for the end."""
        missing = SHORT * self.batch - self._available()
        self._due_from = self.trained + missing / self._budget - 1  # an example earns no more than the budget
        return self.settings.spread and missing <= 0 and not self.objective.shifts

    def _available(self) -> float:
        """Return how many examples a repair during training may use now."""
        earned, batch = self._budget * self.trained, self.settings.batch
        return earned - min(SHARE * earned, _reserve(self._held, batch) * batch) - self.spent

    @property
    def batch(self) -> int:
        """The number of examples per step of a repair during training: as many as a training step has, up to a limit.

        Small batches take more steps within the budget, which is worth more to a network that is still in training.
        """
        count = self._processes.count
        return max(2, count, min(self.largest if count == 1 else self._largest_together, self.settings.batch))

    @property
    def spent(self) -> float:
        """The number of training examples that cost as much as all repairs so far.

        An example that is only measured counts as a third, since it has no backward pass.
        """
        return self.tuner.examples + (self.tuner.measured * self.held_out + self._recollection.predicted) / 3

    @property
    def held_out(self) -> int:
        """The number of held-out examples at the last repair."""
        return -(-self._held // HELD_OUT)

    @property
    def cost(self) -> float | None:
        """The cost of all repairs so far as a share of the training's; None without training."""
        return self.spent / self.trained if self.trained else None

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
        processes = self._processes
        self._held = sum(processes.gather(len(buffer)))

        def begin(names: Collection[str], descent: Descent) -> Finetuning:
            part = sharing(descent, processes)
            make = partial(Finetuning, self.model, buffer, names, part, self.objective, generator, engine, processes)
            return make() if engine is None or at_end else _begun_again(make, names, part, buffer, engine)

        bench = Bench.for_buffer(self.model, buffer, self.objective, begin, engine, processes)
        if at_end:
            done: Outcome | Finetuned = yield from self.tuner.repair_fully(bench, names, self.limit())
        else:
            steps = min(LONG, max(SHORT, int(self._available() / self.batch)))
            done = yield from self.tuner.repair_briefly(bench, names, steps, self.batch)
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
        self._count()
        if not self._checked_names(buffer):
            return None
        if not self.step:  # the buffer holds examples from outside the training
            self.start()
        self._held, self._due_from = sum(self._processes.gather(len(buffer))), 0.0  # it may have held more before
        if recalls := self._recollection.predicted > 0:  # otherwise there is nothing earlier to go back to
            self.recall(buffer, now=True)
        limit = self.limit()
        report = repair_fully(
            self.model, buffer, self.objective, self.selection, before=self._anchor.before(), limit=limit,
            total=limit, tuner=self.tuner, generator=generator, processes=self._processes, still=self._still(),
            recollection=self._recollection if recalls else None,
            adam_below=0.0 if self.objective.shifts or has_batch_norm(self._network) else FORGOTTEN,
        )  # fmt: skip
        self.last = replace(report, cost=self.cost)
        self.finetunings += 1
        self.undone += not self.last.steps
        self.start()
        return self.last

    def limit(self) -> int:
        """Return the number of steps that the repair at the end may take."""
        left = self._budget * self.trained - self.spent
        if not self.objective.shifts:
            return max(_reserve(self._held, self.settings.batch), int(left / self.settings.batch))
        scored = 3 * self.held_out  # by the scores of groups, and by measurements around the repair
        return max(LANGUAGE_RESERVE, int((left - scored) / self.settings.batch))

    def sensitivities(self) -> dict[str, float]:
        """Return no S_g: repairs within a budget do not need it, so it is not tracked."""
        return {}

    def profile(self) -> Profile:
        """Return the groups, their scores at the last ``finish``, and what all repairs did and cost."""
        scores = {} if self.last is None else {group.name: group.score for group in self.last.groups}
        chosen = self.selection.choice({}) if self.last is None else self.last.repaired
        cost = "" if self.cost is None else f", cost: {self.cost:.2f} × the training"
        return self.selection.describe(scores, chosen, note=f"repairs: {self.finetunings}, undone: {self.undone}{cost}")

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later steps depend on, besides the network and the buffer."""
        return {
            "step": self.step,
            "trained": self.trained,
            "uncounted": self._uncounted,
            "largest": self.largest,
            "repairs": self.finetunings,
            "undone": self.undone,
            "shifts": list(self.shifts),
            "held": self._held,
            "resting": sorted(self._resting),
            "anchor": dict(self._anchor.held),
            "settled": self._anchor.settled,
            "budget": self._budget,
            "tuner": self.tuner.state_dict(),
            "recollection": self._recollection.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``. The network may have grown since, and the budget may be another."""
        self._anchor.load(state["anchor"], settled=state["settled"])  # first, since this also checks the network
        self.tuner.load_state_dict(state["tuner"])
        self._recollection.load_state_dict(state["recollection"])
        self.step, self.trained, self._uncounted = state["step"], state["trained"], state["uncounted"]
        self.finetunings, self.undone, self._held = state["repairs"], state["undone"], state["held"]
        self.shifts, self._resting, self.largest = list(state["shifts"]), set(state["resting"]), state["largest"]
        self._due_from = 0.0
        if state["budget"] != self._budget:
            warn(f"the state was saved with budget {state['budget']}; this FPF has {self._budget}", stacklevel=3)

    def _count(self) -> None:
        """Add the examples of all processes to those of the training."""
        examples = self._uncounted
        if self._processes.count > 1:
            counts = self._processes.gather((examples, self.largest))
            examples, self._largest_together = map(sum, zip(*counts, strict=True))
        self.trained += examples
        self._uncounted = 0

    def _still(self) -> set[str]:
        """Return the statistics that do not move in training, although the network's modes do not say so now."""
        return set() if self._network.training else self._resting  # being tested, all layers are in evaluation mode

    def _checked_names(self, buffer: Buffer) -> tuple[str, ...]:
        """Return ``names()``; raise an error if the examples do not fit the network."""
        if names := self.names():
            rows = {name: buffer[name] for name in buffer.columns}
            try_out(self.model, self.objective, rows, names=names, batch=2, distill=self.settings.distill)
        return names


def _begun_again(
    make: Callable[[], Finetuning], names: Collection[str], descent: Descent, buffer: Buffer, engine: Engine
) -> Finetuning:
    """Return the finetuning that the engine keeps for such repairs, which takes a while to make."""
    if len(buffer) < buffer.capacity:
        return make()
    return engine.persistent(("repair", *names, replace(descent, rates=()), descent.steps), make).restart(descent)


def _reserve(held: int, batch: int) -> int:
    """Return the steps that are left over for the end, with this number of examples in the buffer."""
    return max(RESERVE, PASSES * held // batch)


def _tuner(network: nn.Module, settings: Finetune, objective: Objective) -> Tuner:
    """Return a tuner with the rates of networks with or without batch norm, and the clipping of language models."""
    clip = CLIP if objective.shifts else None
    return Tuner(settings.batch, settings.distill, BATCH_NORM_LR if has_batch_norm(network) else LR, clip)
