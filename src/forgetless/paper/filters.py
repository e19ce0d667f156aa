"""Measure how far every filter of a network's convolutions moves during a run: within a task and across tasks.

The paper's figure of filters. The run is the one of its settings; it is only observed at the end of every epoch.
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from forgetless.experiments import record
from forgetless.experiments.build import build_run
from forgetless.experiments.jobs import Planned
from forgetless.experiments.record import Record
from forgetless.experiments.run import make_record
from forgetless.experiments.storage import check_folder
from forgetless.repair.sensitivity import filter_changes
from forgetless.training.events import Ended, EpochEnded


def measure_filters(run: Planned, out: Path) -> Record:
    """Train a run and write its record, with the changes of its filters in ``details["filters"]``; skip a finished run.

    For each layer and filter, ``within`` is the mean absolute change between consecutive epochs of a task, ``across``
    that from the last epoch of a task to the first of the next, both as means over the run.
    """
    file = record.path(out, run.settings)
    if file.exists() and "filters" in (finished := record.read(file)).details:
        return finished
    check_folder(out)
    events = build_run(run.settings)
    watch = FilterWatch(events.network)
    for event in events:
        if isinstance(event, EpochEnded):
            watch.observe(event.task)
        elif isinstance(event, Ended):
            result = event.result
    measured = replace(make_record(run.settings, run.sources, result), details={"filters": watch.changes()})
    record.write(measured, file)
    return measured


class FilterWatch:
    """Remembers the filters at the end of the last epoch, and how far they moved each time."""

    def __init__(self, network: nn.Module) -> None:
        self._layers = {name: m.weight for name, m in network.named_modules() if isinstance(m, nn.Conv2d)}
        self._task, self._weights = 0, dict[str, Tensor]()
        self._moved: dict[str, dict[str, list[Tensor]]] = {"within": defaultdict(list), "across": defaultdict(list)}

    def observe(self, task: int) -> None:
        """Compare the filters with those at the end of the last epoch."""
        moved = self._moved["within" if task == self._task else "across"]
        for layer, before in self._weights.items():
            moved[layer].append(filter_changes(self._layers[layer].detach(), before))
        self._task, self._weights = task, {name: weight.detach().clone() for name, weight in self._layers.items()}

    def changes(self) -> dict[str, dict[str, list[float]]]:
        """Return the mean change of each filter by layer, within tasks and across tasks."""
        if not all(self._moved.values()):
            raise ValueError("the run is too short to compare filters: it needs two tasks of at least two epochs")
        means: dict[str, dict[str, list[float]]] = {layer: {} for layer in self._layers}
        for kind, moved in self._moved.items():
            for layer, changes in moved.items():
                means[layer][kind] = [float(f"{value:.4g}") for value in torch.stack(changes).mean(0).tolist()]
        return means
