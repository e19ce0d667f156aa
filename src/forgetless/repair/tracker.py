"""Remembers where the parameters were, and writes down how far they have moved.

``Tracker.mark()`` ends an epoch, or a window of steps that stands for one; ``boundary()`` says that a new task begins.
Each mark gives a row of changes since the mark before, and, where the previous task had an epoch of the same number, a
row of changes since then (the paper's C_ℓ). Rows stay on the device until they are read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from forgetless.repair import sensitivity as dynamics
from forgetless.repair.groups import float_tensors

REPLACED = (
    ". A network with a layer replaced or added needs an FPF of its own, made after that; it can take over the "
    "examples: new.buffer.load_state_dict(old.buffer.state_dict())"
)
FOLLOWS = ". A buffer that follows the batch is no part of what is learned: register it with persistent=False"


class Row(NamedTuple):
    """The changes of all tensors, in the tracker's order, up to the end of this epoch of this task (both from 1)."""

    task: int
    epoch: int
    changes: Tensor


class Tracker:
    """Follows the tensors ``names`` of a network through tasks and epochs.

    Task-to-task changes are taken at the first ``epochs`` epochs of each task (1: the paper's early epochs; None: all).
    Memory: one copy of the tensors, and one for each of those epochs. ``keep`` bounds the rows held (None: all).
    ``agree`` is applied to the changes of each row; several processes take their mean.
    """

    def __init__(
        self,
        network: nn.Module,
        names: Sequence[str],
        epochs: int | None = 1,
        keep: int | None = 1000,
        agree: Callable[[Tensor], Tensor] = lambda changes: changes,
    ) -> None:
        self._network = network
        self.names = tuple(names)
        self._known = {name for name, _ in network.named_parameters()}
        self._epochs = epochs
        self._agree = agree
        self.task = 1
        self.epoch = 0
        self.between_epochs: deque[Row] = deque(maxlen=keep)
        self.between_tasks: deque[Row] = deque(maxlen=keep)
        self._last: dict[str, Tensor] | None = None
        self._first: dict[int, tuple[int, dict[str, Tensor]]] = {}  # epoch -> the latest task that reached it, snapshot

    @torch.no_grad()
    def snapshot(self) -> dict[str, Tensor]:
        tensors = float_tensors(self._network)
        for name in self.names:
            if name not in tensors:
                raise ValueError(f"the network no longer has {name}, which is being tracked{REPLACED}")
        for name, tensor in tensors.items():
            if tensor.requires_grad and name not in self._known:
                raise ValueError(f"the network has {name}, which it did not have when tracking began{REPLACED}")
        return {name: tensors[name].detach().clone() for name in self.names}

    def start(self) -> None:
        """Count the next row's changes from here."""
        self._last = self.snapshot()

    @torch.no_grad()
    def leave_out(self, moved: Mapping[str, Tensor]) -> None:
        """Tensors were moved so far by a finetuning, which the next row's changes leave out."""
        if self._last is not None:
            moved = {name: change for name, change in moved.items() if name in self._last}
            self._last = self._last | {name: self._last[name] + change for name, change in moved.items()}

    def mark(self, begins_task: Callable[[Row], bool] | None = None) -> Row | None:
        """End an epoch; gives the row of changes since the last mark, or None where nothing came before it.

        ``begins_task`` may look at that row and say that this epoch was already the first of a new task.
        """
        self.epoch += 1
        now = self.snapshot()
        row = None
        if self._last is not None:
            row = Row(self.task, self.epoch, self._agree(self._row(now, self._last)))
            if begins_task is not None and begins_task(row):
                self.boundary()
                self.epoch = 1
                row = Row(self.task, self.epoch, row.changes)
            self.between_epochs.append(row)
        self._last = now
        if self._epochs is None or self.epoch <= self._epochs:
            task, before = self._first.get(self.epoch, (self.task, now))
            if task == self.task - 1:
                self.between_tasks.append(Row(self.task, self.epoch, self._agree(self._row(now, before))))
            self._first[self.epoch] = (self.task, now)
        return row

    def _row(self, now: dict[str, Tensor], before: dict[str, Tensor]) -> Tensor:
        before = {name: tensor.to(now[name].device) for name, tensor in before.items()}  # a network may be moved
        try:
            values = list(dynamics.changes(now, before).values())
        except ValueError as error:  # another shape
            weights = dict(self._network.named_parameters())
            replaced = any(now[name].shape != value.shape for name, value in before.items() if name in weights)
            raise ValueError(f"{error}{REPLACED if replaced else FOLLOWS}") from None
        return torch.stack([value.to(values[0].device, torch.float32) for value in values])  # (tensors,)

    def boundary(self) -> None:
        """A new task begins: the next mark ends its first epoch."""
        self.task += 1
        self.epoch = 0

    def task_changes(self) -> dict[str, float]:
        """C of each tensor: the mean over all rows between tasks; empty while there is none. The host waits here.

        Rows with a number that is not finite, of weights that were put back since say, count only if all are such.
        """
        if not self.between_tasks:
            return {}
        device = self.between_tasks[-1].changes.device  # a network may be moved
        rows = torch.stack([row.changes.to(device) for row in self.between_tasks])
        finite = rows.isfinite().all(1)
        mean = (rows[finite] if finite.any() else rows).mean(0)
        return dict(zip(self.names, mean.tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "epoch": self.epoch,
            "last": self._last,
            "first": {epoch: [task, snapshot] for epoch, (task, snapshot) in self._first.items()},
            "between_epochs": [list(row) for row in self.between_epochs],
            "between_tasks": [list(row) for row in self.between_tasks],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        tensors = float_tensors(self._network)

        def here(snapshot: Mapping[str, Tensor]) -> dict[str, Tensor]:
            if set(snapshot) <= tensors.keys() and (other := sorted(set(snapshot) ^ set(self.names))):
                tracked = "followed" if other[0] in snapshot else "did not follow"
                raise ValueError(
                    f"the state is of a run that {tracked} {other[0]}: make this while the same parameters are frozen "
                    "as were there, and freeze others afterwards"
                )
            if tuple(snapshot) != self.names or any(snapshot[n].shape != tensors[n].shape for n in self.names):
                raise ValueError("the state was saved from another network: its tensors have other names or shapes")
            return {name: torch.empty_like(tensors[name]).copy_(value) for name, value in snapshot.items()}

        last = None if state["last"] is None else here(state["last"])
        first = {epoch: (task, here(snapshot)) for epoch, (task, snapshot) in state["first"].items()}
        device = tensors[self.names[0]].device
        self.task, self.epoch, self._last, self._first = state["task"], state["epoch"], last, first
        for name in ("between_epochs", "between_tasks"):
            rows: deque[Row] = getattr(self, name)
            rows.clear()
            rows.extend(Row(task, epoch, values.to(device, copy=True)) for task, epoch, values in state[name])


class Detector:
    """``dynamics.boundaries`` one window at a time: remembers the recent windows and the highest of the task."""

    def __init__(
        self, settle: int = dynamics.SETTLE, jump: float = dynamics.JUMP, floor: float = dynamics.FLOOR
    ) -> None:
        self._jump, self._floor = jump, floor
        self._recent: deque[list[float]] = deque(maxlen=settle)
        self._highest: list[float] = []

    def see(self, row: Sequence[float]) -> bool:
        """Whether this window begins a new task."""
        if not dynamics.counts(row):
            return False
        settled = len(self._recent) == self._recent.maxlen
        begins = settled and dynamics.is_boundary(row, list(self._recent), self._highest, self._jump, self._floor)
        if begins:
            self.restart()
        self._recent.append(list(row))
        self._highest = [max(pair) for pair in zip(row, self._highest or row, strict=True)]
        return begins

    def restart(self) -> None:
        """Forget the windows seen: a boundary was told, or a finetuning has come between."""
        self._recent.clear()
        self._highest = []

    def state_dict(self) -> dict[str, Any]:
        return {"recent": [list(row) for row in self._recent], "highest": list(self._highest)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restart()
        self._recent.extend(list(row) for row in state["recent"])
        self._highest = list(state["highest"])
