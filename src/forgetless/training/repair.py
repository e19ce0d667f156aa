"""FPF and k-FPF around a method of the benchmark."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.flops import training_flops
from forgetless.methods.learner import Learner
from forgetless.repair import finetune as finetuning
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune
from forgetless.repair.tracker import Row, Tracker
from forgetless.training.events import Event, Repaired, Stepped, Waiting

PROGRESS = 10  # steps between two events of progress; runs in turns on one GPU change at them
EARLY = 10  # epochs of a task that are compared with those of the task before, each from a copy of the weights


class Repair:
    """FPF and k-FPF beside a method: what moved, what is chosen, and its finetuning."""

    def __init__(
        self, network: nn.Module, learner: Learner, settings: Finetune | None, generator: torch.Generator
    ) -> None:
        self._network, self._learner, self._generator = network, learner, generator
        self._settings = settings
        groups = "auto" if settings is None else settings.groups
        self.selection = Selection(network, groups, 1.0 if settings is None else settings.threshold)
        self.tracker = Tracker(network, self.selection.tracked, epochs=EARLY, keep=None)
        self._run: finetuning.Finetuning | None = None  # the finetuning that is under way, of these groups
        self._chosen: tuple[str, ...] = ()
        self._moved: dict[str, Tensor] = {}  # how far the last one has moved what was chosen

    def groups(self, row: Row) -> dict[str, float]:
        return self.selection.by_group(dict(zip(self.tracker.names, row.changes.tolist(), strict=True)))

    def weights(self, row: Row) -> list[float]:
        """The changes of all but statistics, by which a boundary is told, as ``FPF`` tells it."""
        return self.selection.of_weights(dict(zip(self.tracker.names, row.changes.tolist(), strict=True)))

    def tensor_changes(self) -> dict[str, list[float]]:
        """How far each tensor moved from one task to the next: a value for each pair of tasks, mean over epochs."""
        by_task: dict[int, list[Tensor]] = {}
        for row in self.tracker.between_tasks:
            by_task.setdefault(row.task, []).append(row.changes)
        means = [torch.stack(rows).mean(0).tolist() for rows in by_task.values()]
        return {name: [values[i] for values in means] for i, name in enumerate(self.tracker.names)}

    def run(self, step: int, task: int, epoch: int) -> Generator[Event, None, Repaired | None]:
        """One finetuning, if groups are chosen or can be by now."""
        settings, learner = self._settings, self._learner
        assert settings is not None
        if self._run is None:
            chosen = self.selection.movable(self.selection.choice(self.tracker.task_changes()))
            if not chosen:
                return None
            # What draws from torch's global random numbers, dropout say, starts from a number of this generator's.
            learner.engine.seed(int(torch.randint(2**31, (), generator=self._generator, device=learner.device)))
            self._begin(chosen)
        run, chosen = self._run, self._chosen
        assert run is not None
        while run.left:
            run.advance(PROGRESS)
            yield Stepped(step, task, epoch)
        if learner.engine.will_wait():
            yield Waiting()
        done = run.finish()
        self._moved = run.moved()
        learner.finetuned = True
        self._run = None
        return Repaired(step, chosen, done.losses[0], done.losses[-1])

    def count(self, done: Repaired) -> None:
        """The finetuning is part of the run: it has its cost, its choice stays, its changes are not the training's."""
        assert self._settings is not None
        self._learner.ledger.add("finetune", self._cost(self.selection.names(done.groups)), self._settings.steps)
        self.selection.chosen = done.groups
        self.tracker.leave_out(self._moved)

    def _begin(self, chosen: tuple[str, ...]) -> None:
        settings, learner = self._settings, self._learner
        assert settings is not None
        self._chosen = chosen
        self._run = finetuning.Finetuning(
            self._network,
            learner.buffer,
            self.selection.names(chosen),
            settings.steps,
            settings.lr,
            settings.distill,
            batch=settings.batch,
            augment=learner.augmenting(settings.pad),
            forward=learner.engine.forward,
            generator=self._generator,
            engine=learner.engine,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """Of the finetuning that is under way, if there is one."""
        return None if self._run is None else {"chosen": list(self._chosen), **self._run.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        if state is not None:
            self._begin(tuple(state["chosen"]))
            assert self._run is not None
            self._run.load_state_dict(state)

    @property
    def under_way(self) -> bool:
        return self._run is not None

    def _cost(self, names: list[str]) -> int:
        """FLOPs of one step, counted once for each choice and batch."""
        settings = self._settings
        assert settings is not None
        size = min(settings.batch, len(self._learner.buffer))
        chosen = finetuning.unfrozen(self._network, names)
        key, costs = ("finetune", chosen, size), self._learner.costs
        if key not in costs:
            with finetuning.only(self._network, chosen):
                costs[key] = training_flops(self._network, self._learner.zero_inputs(size))
        return costs[key]
