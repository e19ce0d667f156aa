"""FPF and k-FPF around a method of the benchmark."""

from collections.abc import Generator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from forgetless.compute.flops import training_flops
from forgetless.methods.learner import Learner
from forgetless.repair.bench import Outcome
from forgetless.repair.finetuning import Finetuning
from forgetless.repair.freezing import only, unfrozen
from forgetless.repair.groups import float_tensors
from forgetless.repair.objective import Objective
from forgetless.repair.repairer import Repairer
from forgetless.repair.restoring import copies, copy_all, draw_seed
from forgetless.repair.settings import Finetune
from forgetless.repair.tracker import Row
from forgetless.repair.upkeep import Upkeep
from forgetless.training.events import Event, Repaired, Stepped, Waiting

PROGRESS = 10  # steps between two events of progress; runs that share a GPU take turns at them
EARLY = 10  # epochs of a task that are compared with those of the previous task, each from a copy of the weights


@final
class Repair:
    """The repairs of a run: a ``Repairer`` whose finetunings are events, can be resumed, and count as FLOPs.

    Without ``settings`` the run only tracks the network. ``generator`` draws the batches of a finetuning.
    """

    def __init__(
        self, network: nn.Module, learner: Learner, settings: Finetune | None, generator: torch.Generator
    ) -> None:
        self._network, self._learner, self._generator = network, learner, generator
        self._settings = settings or Finetune()
        augment = learner.augmenting(self._settings.pad)
        objective = Objective(augment, forward=learner.engine.forward, prepare=learner.plain)
        schedule = self._settings if self._settings.budget is None else Finetune(groups=self._settings.groups)
        self._repairer = Repairer(network, schedule, objective, epochs=EARLY, keep=None)  # tracks with a budget, too
        self._upkeep = None if self._settings.budget is None else Upkeep(network, self._settings, objective)
        self.tracker = self._repairer.tracker
        self.selection = self._repairer.selection if self._upkeep is None else self._upkeep.selection
        self._run: Finetuning | None = None  # the finetuning under way, of these groups
        self._groups: tuple[str, ...] = ()
        self._movable: dict[str, Tensor] = {}  # what repairs within a budget move; empty: not known
        self._moved: dict[str, Tensor] = {}  # the values of tensors before a repair; after it, how far it moved them
        self._trained = 0  # examples of the training so far
        self._counted = (0, 0)  # examples and measurements of self-tuning repairs whose FLOPs are counted

    def due(self, step: int, examples: int, stored: int) -> bool:
        """Count the examples of a training step, and return whether a repair follows it."""
        self._trained += examples
        if self._upkeep is None:
            return self._settings.due(step) and stored > 0
        account = self._upkeep.account
        account.trained, account.largest = self._trained, max(account.largest, examples)
        return account.affords_repair() and self._upkeep.ready(self._learner.buffer)

    def look_again(self) -> None:
        """Note that parts of the network may have been frozen or replaced."""
        self._movable = {}
        if self._upkeep is not None:
            self._learner.engine.discard_graphs("finetune")  # they hold the tensors that moved until now
            self._upkeep.look_again()

    def groups(self, row: Row) -> dict[str, float]:
        return self.selection.by_group(self.tracker.by_tensor(row))

    def tensor_changes(self) -> dict[str, list[float]]:
        """Return how far each tensor moved between tasks: one value per pair of tasks, the mean over epochs."""
        by_task: dict[int, list[Tensor]] = {}
        for row in self.tracker.between_tasks:
            by_task.setdefault(row.task, []).append(row.changes)
        means = [torch.stack(rows).mean(0).tolist() for rows in by_task.values()]
        return {name: [values[i] for values in means] for i, name in enumerate(self.tracker.names)}

    def run(self, progress: Stepped, *, final: bool) -> Generator[Event, None, Repaired | None]:
        """Finetune the chosen groups, if any; yield ``progress`` and return the event."""
        learner = self._learner
        if self._upkeep is not None:
            return (yield from self._repair_within_budget(self._upkeep, progress, final))
        if self._run is None:
            groups = self._repairer.choose().movable
            if not groups:
                return None
            learner.engine.seed(draw_seed(self._generator))  # of dropout and others that use torch's global state
            self._begin(groups)
        run, groups = self._run, self._groups
        assert run is not None
        while run.left:
            run.advance(PROGRESS)
            yield progress
        if learner.engine.will_wait():
            yield Waiting()
        done = run.finish()
        self._moved = run.moved()
        learner.finetuned = True
        self._run = None
        return Repaired(progress.step, groups, done.losses[0], done.losses[-1])

    def count(self, done: Repaired) -> None:
        """Make a finetuning part of the run: add its FLOPs, keep its choice, leave its changes out of training's."""
        learner = self._learner
        chosen = tuple(self._movable) or unfrozen(self._network, self.selection.names(done.groups))
        held_out = 0 if self._upkeep is None else self._upkeep.account.held_out
        size = min(self._settings.batch, len(learner.buffer) - held_out)
        key = ("finetune", chosen, size)
        if key not in learner.costs:
            with only(self._network, chosen):
                learner.costs[key] = training_flops(self._network, learner.zero_inputs(size))
        if self._upkeep is None:
            learner.flops["finetune"] += (self._settings.steps or 0) * learner.costs[key]
        else:
            tuner = self._upkeep.tuner
            examples, measured = tuner.examples - self._counted[0], tuner.measured - self._counted[1]
            self._counted = (tuner.examples, tuner.measured)
            learner.flops["finetune"] += examples * learner.costs[key] // size
            learner.spend("finetune", measured * held_out)
        self._repairer.accept(done.groups, self._moved)

    @property
    def tuned(self) -> bool:
        """Whether repairs tune themselves within a budget. Such a repair cannot be resumed in its middle."""
        return self._upkeep is not None

    @property
    def under_way(self) -> bool:
        return self._run is not None

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the finetuning under way, if there is one."""
        return None if self._run is None else {"chosen": list(self._groups), **self._run.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Resume the finetuning that was under way, if there was one."""
        if state is not None:
            self._begin(tuple(state["chosen"])).load_state_dict(state)

    def upkeep_state(self) -> dict[str, Any]:
        """Return what repairs within a budget have found and spent so far, and the examples that they follow."""
        upkeep = {} if self._upkeep is None else self._upkeep.state_dict()
        return {**upkeep, "trained": self._trained, "counted": list(self._counted)}

    def load_upkeep_state(self, state: Mapping[str, Any]) -> None:
        """Resume from what ``upkeep_state`` returned, also at the end of a training that had another repair."""
        self._trained = state["trained"]
        if self._upkeep is None:
            return
        self._upkeep.account.trained = self._trained
        if state.get("budget") == self._settings.budget:
            examples, measured = state["counted"]
            self._counted = (examples, measured)
            self._upkeep.load_state_dict(state)

    def _repair_within_budget(
        self, upkeep: Upkeep, progress: Stepped, final: bool
    ) -> Generator[Event, None, Repaired | None]:
        learner = self._learner
        if self._movable:
            learner.engine.call(("finetune", "before"), lambda: copy_all(self._moved, self._movable))
        else:
            tensors = float_tensors(self._network)
            self._movable = {name: tensors[name] for name in upkeep.names()}
            self._moved = copies(self._movable)
        if not (names := tuple(self._movable)):
            return None
        groups = upkeep.selection.owners(names)
        if final:
            learner.engine.seed(draw_seed(self._generator))  # of dropout and others that use torch's global state
        work = upkeep.repair(names, learner.buffer, self._generator, learner.engine, at_end=final)
        while True:
            try:
                next(work)
            except StopIteration as end:
                done = end.value
                break
            yield Waiting() if learner.engine.will_wait() else progress
        learner.engine.call(("finetune", "after"), self._measure_moves)
        learner.finetuned = True
        if not isinstance(done, Outcome):
            self.tracker.leave_out(self._moved)
            return None
        return Repaired(progress.step, groups, done.before.loss, done.after.loss, kept=bool(done.losses))

    @torch.no_grad()
    def _measure_moves(self) -> None:
        """Replace the values of tensors before a repair by how far it moved them."""
        before = list(self._moved.values())
        torch._foreach_sub_(before, list(self._movable.values()))
        torch._foreach_neg_(before)

    def _begin(self, groups: tuple[str, ...]) -> Finetuning:
        names, learner = self.selection.names(groups), self._learner
        assert learner.buffer is not None
        self._run = self._repairer.begin(names, learner.buffer, self._generator, engine=learner.engine)
        self._groups = groups
        return self._run
