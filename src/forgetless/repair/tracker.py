"""Follow how far the parameters of a network move from epoch to epoch and from task to task.

``Tracker.mark()`` ends an epoch, or a window of steps that replaces one. ``boundary()`` says that a new task begins.
Each mark adds a row of changes since the previous mark. Where the previous task had an epoch of the same number, it
also adds a row of changes since then (the paper's C_ℓ). Rows stay on the device until they are read.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from forgetless.compute.shards import is_sharded, shard, shard_weight
from forgetless.repair import sensitivity
from forgetless.repair.groups import float_tensors
from forgetless.repair.restoring import copies, empty_copy

REPLACED = (
    ". After a layer was replaced or added, make a new FPF; it can take over the examples: "
    "new.buffer.load_state_dict(old.buffer.state_dict()). A buffer whose shape follows the batch needs persistent=False"
)


class Row(NamedTuple):
    """The changes of all tensors, in the tracker's order, up to the end of an epoch of a task (both from 1)."""

    task: int
    epoch: int
    changes: Tensor


@final
class Tracker:
    """Follow the tensors ``names`` of a network through tasks and epochs.

    The first ``epochs`` epochs of a task are compared with those of the previous task (1: the paper's early epochs).
    Memory: one copy of the tensors, plus one for each of those epochs, on their devices or in ``host`` memory. ``keep``
    bounds the rows held.
    """

    def __init__(
        self,
        network: nn.Module,
        names: Sequence[str],
        epochs: int = 1,
        keep: int | None = 1000,
        *,
        host: bool = False,
    ) -> None:
        self._network, self._host = network, host
        self.names = tuple(names)
        self._parameters = {name for name, _ in network.named_parameters()}
        self._epochs = epochs
        self.agree: Callable[[Tensor], Tensor] = lambda changes: changes  # several processes take their mean
        self.task = 1
        self.epoch = 0
        self.between_epochs: deque[Row] = deque(maxlen=keep)
        self.between_tasks: deque[Row] = deque(maxlen=keep)
        self._last: dict[str, Tensor] | None = None
        self._first: dict[int, tuple[int, dict[str, Tensor]]] = {}  # epoch -> the last task that reached it, snapshot

    def snapshot(self) -> dict[str, Tensor]:
        """Return copies of the tensors."""
        return copies(self._present(), host=self._host)

    def _present(self) -> dict[str, Tensor]:
        """Return the tensors as they are now; raise ``ValueError`` if layers were added or replaced."""
        tensors = float_tensors(self._network)
        for name in self.names:
            if name not in tensors:
                raise ValueError(f"the network no longer has {name}, which is being tracked{REPLACED}")
        for name, tensor in tensors.items():
            if tensor.requires_grad and name not in self._parameters:
                raise ValueError(f"the network has {name}, which it did not have when tracking began{REPLACED}")
        return {name: shard(tensors[name]) for name in self.names}

    def start(self) -> None:
        """Measure the next row's changes from the present weights."""
        self._last = self.snapshot()

    @torch.no_grad()
    def leave_out(self, moved: Mapping[str, Tensor]) -> None:
        """Exclude from the next row how far a finetuning moved these tensors."""
        if self._last is None:
            return
        if any(snapshot is self._last for _, snapshot in self._first.values()):
            self._last = copies(self._last, host=self._host)  # later tasks are compared with the snapshot
        names = [name for name in moved if name in self._last]
        torch._foreach_add_([self._last[name] for name in names], [moved[name] for name in names])

    def mark(self, begins_task: Callable[[Row], bool] | None = None) -> Row | None:
        """End an epoch and return the row of changes since the last mark; None if nothing came before it.

        ``begins_task`` decides from the row whether this epoch was already the first of a new task.
        """
        self.epoch += 1
        tensors = self._present()
        row = None
        if self._last is not None:
            row = Row(self.task, self.epoch, self.agree(self._changes(tensors, self._last)))
            if begins_task is not None and begins_task(row):
                self.boundary()
                self.epoch = 1
                row = Row(self.task, self.epoch, row.changes)
            self.between_epochs.append(row)
        self._last = snapshot = copies(tensors, host=self._host)
        if self.epoch <= self._epochs:
            task, before = self._first.get(self.epoch, (self.task, snapshot))
            if task == self.task - 1:
                self.between_tasks.append(Row(self.task, self.epoch, self.agree(self._changes(tensors, before))))
            self._first[self.epoch] = (self.task, snapshot)
        return row

    def boundary(self) -> None:
        """Begin a new task: the next mark ends its first epoch."""
        self.task += 1
        self.epoch = 0

    def by_tensor(self, row: Row) -> dict[str, float]:
        """Return the changes of a row by name. Synchronises with the GPU."""
        return dict(zip(self.names, row.changes.tolist(), strict=True))

    def task_changes(self) -> dict[str, float]:
        """Return C of each tensor: the mean over the finite rows between tasks, if any. Synchronises with the GPU."""
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
            "last": None if self._last is None else copies(self._last),
            "first": {epoch: [task, snapshot] for epoch, (task, snapshot) in self._first.items()},
            "between_epochs": [list(row) for row in self.between_epochs],
            "between_tasks": [list(row) for row in self.between_tasks],
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state_dict`` returned; raise ``ValueError`` if it is of another network."""
        tensors = float_tensors(self._network)
        last = None if state["last"] is None else self._fitted(state["last"], tensors)
        first = {epoch: (task, self._fitted(snapshot, tensors)) for epoch, (task, snapshot) in state["first"].items()}
        device = tensors[self.names[0]].device
        self.task, self.epoch, self._last, self._first = state["task"], state["epoch"], last, first
        for name in ("between_epochs", "between_tasks"):
            rows: deque[Row] = getattr(self, name)
            rows.clear()
            rows.extend(Row(task, epoch, values.to(device, copy=True)) for task, epoch, values in state[name])

    def _changes(self, now: dict[str, Tensor], before: dict[str, Tensor]) -> Tensor:
        try:
            values = list(sensitivity.changes(now, before).values())
        except ValueError as error:  # another shape
            raise ValueError(f"{error}{REPLACED}") from None
        means = torch.stack([value.to(values[0].device, torch.float32) for value in values])  # (tensors,)
        if not is_sharded(self._network):
            return means
        tensors = float_tensors(self._network)
        weights = means.new_tensor([shard_weight(tensors[name]) for name in now])
        return torch.where(weights > 0, weights * means, 0)  # a mean over an empty shard is NaN

    def _fitted(self, snapshot: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a saved snapshot on the network's devices, checked against its tensors."""
        if tuple(snapshot) != self.names or any(snapshot[n].shape != shard(tensors[n]).shape for n in self.names):
            other = ", ".join(sorted(set(snapshot) ^ set(self.names))[:1]) or "a shape"
            raise ValueError(
                f"the state was saved from another network, or with other parameters frozen: {other} differs. Freeze "
                "the same parameters before loading it, and others afterwards"
            )
        return {
            name: empty_copy(shard(tensors[name]), host=self._host).copy_(value) for name, value in snapshot.items()
        }
