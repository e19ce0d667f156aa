"""How far every filter of a network's convolutions moves during a run: within a task, and when the task changes.

The paper's figure of filters. The run is the one its settings say; it is only watched, at the end of every epoch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from forgetless.experiments import record
from forgetless.experiments.record import Record
from forgetless.experiments.run import make_record, start
from forgetless.experiments.storage import check_folder
from forgetless.experiments.sweep import Planned
from forgetless.repair import sensitivity as dynamics
from forgetless.training.events import Ended, EpochEnded


def measure(run: Planned, out: Path) -> Record:
    """The run's record, with the changes of filters by layer in ``details["filters"]``; not done again if it is there.

    ``within`` is the mean over consecutive epochs of a task of a filter's mean absolute change, ``across`` that from
    the last epoch of a task to the first of the next.
    """
    file = record.path(out, run.settings)
    if file.exists() and "filters" in (found := record.read(file)).details:
        return found
    check_folder(out)
    events = start(run.settings)
    watch = _Watch(events.network)
    for event in events:
        if isinstance(event, EpochEnded):
            watch.see(event.task)
        elif isinstance(event, Ended):
            made = make_record(run.settings, run.sources, event.result)
    made = replace(made, details={"filters": watch.changes()})
    record.write(made, file)
    return made


class _Watch:
    """Remembers the filters at the last epoch's end, and sums up how far they moved."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = {name: m.weight for name, m in network.named_modules() if isinstance(m, nn.Conv2d)}
        if not self._layers:
            raise ValueError(f"{type(network).__name__} has no convolutions, and so no filters")
        self._last: tuple[int, dict[str, Tensor]] | None = None
        self._sums: dict[str, list[dict[str, Tensor]]] = {"within": [], "across": []}

    @torch.no_grad()
    def see(self, task: int) -> None:
        now = {name: weight.detach().clone() for name, weight in self._layers.items()}
        if self._last is not None:
            before_task, before = self._last
            moved = {name: dynamics.filter_changes(now[name], before[name]) for name in now}
            self._sums["within" if before_task == task else "across"].append(moved)
        self._last = (task, now)

    def changes(self) -> dict[str, dict[str, list[float]]]:
        for kind, rows in self._sums.items():
            if not rows:
                needed = "two epochs a task" if kind == "within" else "two tasks"
                raise ValueError(f"no change {kind} was seen: a run needs {needed} or more")
        return {
            name: {
                kind: [float(f"{value:.4g}") for value in torch.stack([row[name] for row in rows]).mean(0).tolist()]
                for kind, rows in self._sums.items()
            }
            for name in self._layers
        }
