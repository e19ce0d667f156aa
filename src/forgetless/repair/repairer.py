"""Repair on the paper's schedules: track what moves, detect shifts, choose groups by S_g, finetune when it is due.

``FPF`` drives it step by step in a user's loop, ``training.repair`` epoch by epoch in the benchmark. Repairs within a
budget are those of ``upkeep``.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, final
from warnings import warn

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import unwrap
from forgetless.memory.buffer import Buffer
from forgetless.repair.descent import Descent, sharing
from forgetless.repair.finetuning import Finetuned, Finetuning
from forgetless.repair.freezing import resting
from forgetless.repair.objective import Objective
from forgetless.repair.profile import Profile
from forgetless.repair.restoring import untouched_randomness
from forgetless.repair.selection import Selection
from forgetless.repair.settings import Finetune, Tracking
from forgetless.repair.shifts import Detector
from forgetless.repair.tracker import Row, Tracker

TRACKING = Tracking()


class Choice(NamedTuple):
    """What a finetuning would move now."""

    groups: tuple[str, ...]  # the chosen groups, including those that are frozen for now
    movable: tuple[str, ...]  # those that are not frozen
    names: tuple[str, ...]  # the tensors of the latter


@final
class Repairer:
    """The policy of FPF and k-FPF for one network: which groups are finetuned, when, and how.

    A caller either calls ``advance``, which counts steps, ends windows and detects shifts, or ends epochs and begins
    tasks itself, by ``tracker.mark()`` and ``tracker.boundary()``. With ``host``, the weights of earlier epochs are in
    host memory.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Finetune,
        objective: Objective,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
        *,
        tracking: Tracking = TRACKING,
        epochs: int = 1,
        keep: int | None = 1000,
        host: bool = False,
    ) -> None:
        self.model, self.settings, self.objective, self.tracking = model, settings, objective, tracking
        self._network = unwrap(model)
        self.selection = Selection(self._network, settings, grouping, head)
        self.tracker = Tracker(self._network, self.selection.tracked, epochs, keep, host=host)
        self._detector = Detector() if tracking.detect else None
        self._processes = ALONE
        self.step = 0
        self.finetunings = 0
        self.shifts: list[int] = []  # the steps after which the data shifted, as announced or detected
        self._steps_of_window = 0
        self._resting: set[str] = set()  # statistics of layers in evaluation mode while the network trains

    def join(self, processes: Processes) -> None:
        """Measure changes and finetune together with these processes."""
        self._processes, self.tracker.agree = processes, processes.mean

    def advance(self, examples: int = 0) -> bool:
        """Count a training step, end its window if it is full, and return whether a finetuning is due."""
        self.step += 1
        self._steps_of_window += 1
        ends = self._steps_of_window >= self.tracking.window
        if self._network.training and (self.step == 1 or ends):
            self._resting = resting(self._network)
        if ends:
            self._mark()
        return self.settings.due(self.step)

    def start(self) -> None:
        """Measure changes from the present weights."""
        self.tracker.start()

    def why_not(self) -> str:
        """Return why nothing can be finetuned, and what to do."""
        return self.selection.why_not(self.tracker.task_changes())

    def ready(self, buffer: Buffer) -> bool:
        """Return whether the buffer holds enough for a finetuning that is due."""
        return len(buffer) > 0

    def sensitivities(self) -> dict[str, float]:
        """Return S_g of each group; empty before the first shift."""
        return self.selection.scores(self.tracker.task_changes())

    def profile(self) -> Profile:
        """Return S_g of each group, and which groups are chosen."""
        return self.selection.profile(self.tracker.task_changes(), len(self.tracker.between_tasks))

    def recall(self, buffer: Buffer, *, now: bool = False) -> None:
        """Do nothing: only repairs within a budget bring a language model back to earlier predictions."""

    def boundary(self) -> None:
        """Begin a new task here. From now on no shift is detected."""
        self._detector = None
        self.mark_short_task()
        if self.tracker.epoch:  # otherwise there was no step since the last boundary
            self.shifts.append(self.step)
            self.tracker.boundary()
            self.tracker.start()
            self._steps_of_window = 0

    def mark_short_task(self) -> None:
        """End the window early if the task is shorter than one."""
        if self.tracker.epoch == 0 and self._steps_of_window:
            self._mark()

    def choose(self) -> Choice:
        """Return what to finetune now. Synchronises with the GPU."""
        groups = self.selection.choice(self.tracker.task_changes())
        movable = self.selection.movable(groups)
        names = self.selection.names(movable)
        if not self._network.training:  # being tested: its modes say nothing about training
            names = [name for name in names if name not in self._resting]
        return Choice(groups, movable, tuple(names))

    def begin(
        self,
        names: Collection[str],
        buffer: Buffer,
        generator: torch.Generator,
        engine: Engine | None = None,
    ) -> Finetuning:
        """Return a finetuning of these tensors, before its first step."""
        descent = sharing(Descent.cosine(self.settings), self._processes)
        return Finetuning(self.model, buffer, names, descent, self.objective, generator, engine, self._processes)

    def finetune(self, buffer: Buffer, generator: torch.Generator) -> Finetuned | None:
        """Finetune the chosen groups, if any, and leave the user's random states as they are."""
        choice = self.choose()
        if not choice.names:
            return None
        with untouched_randomness(generator):
            run = self.begin(choice.names, buffer, generator)
            run.advance(run.steps)
            done = run.finish()
        self.accept(choice.groups)
        return done

    def finish(self, buffer: Buffer, generator: torch.Generator) -> Finetuned | None:
        """Finetune at the end of the stream."""
        self.mark_short_task()
        return self.finetune(buffer, generator)

    def accept(self, groups: tuple[str, ...], moved: Mapping[str, Tensor] | None = None) -> None:
        """Keep the choice of a finetuning, and leave what it ``moved`` out of the current epoch's changes.

        Without ``moved`` the window and the detection start again, since training now moves the weights back.
        """
        self.selection.chosen = groups
        self.finetunings += 1
        if moved is not None:
            self.tracker.leave_out(moved)
            return
        self.tracker.start()
        if self._detector is not None:
            self._detector.restart()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that later steps depend on, besides the network and the buffer."""
        return {
            "groups": {group: list(names) for group, names in self.selection.grouping.items()},
            "chosen": None if self.selection.chosen is None else list(self.selection.chosen),
            "step": self.step,
            "finetunings": self.finetunings,
            "shifts": list(self.shifts),
            "window": self.tracking.window,
            "settings": self._echo(),
            "steps_of_window": self._steps_of_window,
            "resting": sorted(self._resting),
            "tracker": self.tracker.state_dict(),
            "detector": None if self._detector is None else self._detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; a state that does not fit raises ``ValueError`` and changes nothing."""
        if {group: tuple(names) for group, names in state["groups"].items()} != self.selection.grouping:
            raise ValueError("the state was saved from a network with other groups of parameters")
        if state["window"] != self.tracking.window:
            raise ValueError(f"the state was saved with window {state['window']}; this has {self.tracking.window}")
        self.tracker.load_state_dict(state["tracker"])
        saved = state["settings"]
        announced = state["detector"] is None and saved["detect"]  # ``boundary`` was called
        self._detector = Detector() if self.tracking.detect and not announced else None
        if self._detector is not None and state["detector"] is not None:
            self._detector.load_state_dict(state["detector"])
        if not self.selection.fixed:  # groups that were named there were not chosen by sensitivity
            chosen = state["chosen"] if saved["groups"] == "auto" else None
            self.selection.chosen = None if chosen is None else tuple(chosen)
        self.step, self.finetunings, self.shifts = state["step"], state["finetunings"], list(state["shifts"])
        self._steps_of_window, self._resting = state["steps_of_window"], set(state["resting"])
        now = self._echo()
        if changed := [name for name in now if saved[name] != now[name]]:
            before, after = (", ".join(f"{name} {values[name]}" for name in changed) for values in (saved, now))
            warn(f"the state was saved with {before}; this FPF has {after}, and resumes with that", stacklevel=3)

    def _echo(self) -> dict[str, Any]:
        """Return the settings that a resumed run may change, as plain data."""
        names = ("every", "steps", "lr", "distill", "batch", "threshold")
        return {name: getattr(self.settings, name) for name in names} | {
            "groups": list(self.selection.chosen or ()) if self.selection.fixed else "auto",
            "detect": self.tracking.detect,
            "autocast": None if self.objective.autocast is None else str(self.objective.autocast),
        }

    def _mark(self) -> None:
        self._steps_of_window = 0
        self.tracker.mark(self._is_shift)

    def _is_shift(self, row: Row) -> bool:
        if self._detector is None:
            return False
        begins = self._detector.see(self.selection.weight_changes(self.tracker.by_tensor(row)))
        if begins:
            self.shifts.append(self.step - self.tracking.window)
        return begins
