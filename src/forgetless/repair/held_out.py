"""Measure a network on the examples of a buffer that repairs hold out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import without_reducer
from forgetless.repair.buffer import Buffer
from forgetless.repair.objective import Objective, unpack

BATCH = 256  # examples per forward pass


@dataclass(frozen=True)
class Score:
    """How well a network does on the held-out examples."""

    loss: float
    accuracy: float | None  # None where the labels are not classes
    examples: int

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        return f"loss {self.loss:.3f}{accuracy}"


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put the network into evaluation mode, and restore every module's mode on leaving."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def measure(
    model: nn.Module,
    buffer: Buffer,
    objective: Objective,
    engine: Engine | None = None,
    processes: Processes | None = None,
) -> Score:
    """Return the score on the held-out examples of ``buffer``, in evaluation mode. Synchronises with the GPU."""
    model = without_reducer(model)
    rows = buffer.held_out()
    count = len(rows["y"])
    device = next(model.parameters()).device

    def totals() -> Tensor:
        return _totals(model, rows, objective, device)

    if engine is None or not engine.cuda:
        sums = totals()
    else:  # every 8th row of the buffer's own tensors, so a captured forward pass reads the present examples
        key = ("held out", count)
        kept = engine.persistent(key, lambda: torch.zeros(3, device=device))
        engine.call(key, lambda: kept.copy_(totals()))
        sums = kept
    if processes is not None and processes.count > 1:
        sums = processes.mean(sums)
    loss, hits, labels = sums.tolist()
    return Score(loss / max(labels, 1), hits / labels if hits >= 0 and labels else None, count)


def _totals(model: nn.Module, rows: dict[str, Tensor], objective: Objective, device: torch.device) -> Tensor:
    """Return the sum of the losses, the number of correct predictions (negative: not classes) and of labels."""
    sums = torch.zeros(3, device=device)
    with evaluating(model), nullcontext() if objective.autocast is None else torch.autocast(device.type, objective.autocast):
        for start in range(0, len(rows["y"]), BATCH):
            part = {name: column[start : start + BATCH].to(device) for name, column in rows.items()}
            prepare = objective.prepare or objective.augment
            inputs = unpack(part) if prepare is None else prepare(unpack(part))
            output = objective.forward(model, inputs)
            value = objective.value(output, part, 0.0).float()
            labels = objective.examples(part["y"], 0.0)
            found = objective.hits(output, part)
            hits = torch.full((), -1.0, device=device) if found is None else found[0]
            labels = torch.as_tensor(labels, device=device) if found is None else found[1]
            sums += torch.stack([value * labels, hits.float(), labels.float()])
    return sums
