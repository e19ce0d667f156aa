"""Measure a network on the examples of a buffer that repairs hold out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import uncompiled, unwrap, without_reducer
from forgetless.repair.buffer import Buffer
from forgetless.repair.objective import Objective
from forgetless.repair.restoring import Restorer

BATCH = 256  # examples per forward pass
PARTS = 64  # at most, into which the held-out examples are divided to see how much their losses scatter


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
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a network into evaluation mode, uncompiled, and leave it as it was: modes, buffers, and what autocast holds.

    An autocast around this forgets the weights that it has cast, since a repair moves them.
    """
    network = unwrap(model)
    written = Restorer(network, ())
    try:
        with in_evaluation_mode(network):
            yield
    finally:
        written.restore_still()


@contextmanager
def in_evaluation_mode(network: nn.Module) -> Iterator[None]:
    """Do the part of ``evaluating`` that needs no copies: all, for networks that write only in training mode."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    torch.clear_autocast_cache()
    try:
        with uncompiled():
            yield
    finally:
        torch.clear_autocast_cache()
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
    device = next(model.parameters()).device
    held = len(buffer)
    if engine is not None and engine.cuda and held == buffer.capacity:
        key = ("held out", held)
        sums = engine.persistent(key, lambda: torch.zeros(4, device=device))
        engine.call(key, lambda: sums.copy_(_sums(model, buffer, objective, device)))
    else:  # rows are still being added, so a captured graph would soon be of no use
        with evaluating(model):
            sums = _sums(model, buffer, objective, device)
    if processes is not None and processes.count > 1:
        sums = processes.mean(sums)
    loss, labels, hits, examples = sums.tolist()
    accuracy = hits / labels if hits >= 0 and labels else None
    return Score(loss / labels if labels else math.nan, accuracy, round(examples))


@torch.no_grad()
def measure_parts(
    model: nn.Module, buffer: Buffer, objective: Objective, processes: Processes | None = None
) -> list[float]:
    """Return the loss on each held-out example, or on ``PARTS`` parts if there are more, in evaluation mode."""
    model = without_reducer(model)
    device = next(model.parameters()).device
    rows = buffer.held_out()
    size = -(-len(next(iter(rows.values()))) // PARTS)
    parts = zip(*(column.split(size) for column in rows.values()), strict=True)
    losses = []
    with evaluating(model), objective.cast(device):
        for columns in parts:
            part = {name: column.to(device) for name, column in zip(rows, columns, strict=True)}
            losses.append(objective.value(objective.output(model, objective.plain_inputs(part), part), part, 0.0))
    values: list[float] = torch.stack(losses).tolist()
    return values if processes is None else [value for part in processes.gather(values) for value in part]


def fell(before: Sequence[float], after: Sequence[float]) -> bool:
    """Return whether the mean fall of paired losses exceeds two standard deviations of Student's t.

    That is two standard errors for many examples, 2.4 for eight and 3.5 for four. Fewer cannot tell a fall from noise.

        >>> fell([1.0, 2.0, 3.0, 4.0], [0.9, 1.9, 2.8, 3.9]), fell([1.0, 2.0, 3.0, 4.0], [0.5, 2.1, 2.8, 4.1])
        (True, False)
    """
    falls = [a - b for a, b in zip(before, after, strict=True)]
    freedom = len(falls) - 1
    if freedom < 3:
        return False
    return mean(falls) > 2 * math.sqrt(freedom / (freedom - 2)) * stdev(falls) / math.sqrt(len(falls))


def _sums(model: nn.Module, buffer: Buffer, objective: Objective, device: torch.device) -> Tensor:
    """Return the sum of the losses, the number of labels, of hits (negative: no classes) and of examples."""
    rows = buffer.held_out()
    count = len(next(iter(rows.values())))
    sums = torch.zeros(4, device=device)
    with in_evaluation_mode(model), objective.cast(device):
        for start in range(0, count, BATCH):
            part = {name: column[start : start + BATCH].to(device) for name, column in rows.items()}
            output = objective.output(model, objective.plain_inputs(part), part)
            value = objective.value(output, part, 0.0).float()
            hits, labels = objective.hits(output, part) or (-1, objective.examples(part, 0.0))
            numbers = [_number(n, device) for n in (labels, hits, min(BATCH, count - start))]
            sums += torch.stack([value * numbers[0], *numbers])
    return sums


def _number(value: int | Tensor, device: torch.device) -> Tensor:
    """Return a number as a tensor, in a way that a CUDA graph can capture."""
    return value.float() if isinstance(value, Tensor) else torch.full((), float(value), device=device)
