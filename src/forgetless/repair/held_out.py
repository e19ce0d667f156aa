"""Measure a network on the examples of a buffer that repairs hold out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine
from forgetless.compute.modules import uncompiled, unwrap, without_reducer
from forgetless.compute.shards import compute_device, is_sharded, reshard
from forgetless.memory.buffer import Buffer
from forgetless.memory.labels import NO_LABEL, class_axis, class_labels
from forgetless.memory.ragged import pass_size
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
    tokens: bool = False  # whether the loss is the mean over tokens of a language model's cross-entropy

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss of a language model; None for other networks."""
        return float(torch.tensor(self.loss, dtype=torch.float64).exp()) if self.tokens else None

    def __str__(self) -> str:
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.1%}"
        perplexity = f", perplexity {self.perplexity:.4g}" if self.tokens else ""
        return f"loss {self.loss:.3f}{accuracy}{perplexity}"


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
        reshard(network)
        for module, mode in modes:
            module.training = mode


def measure(model: nn.Module, buffer: Buffer, objective: Objective, processes: Processes = ALONE) -> Score:
    """Return the score on the held-out examples of ``buffer``, in evaluation mode. Synchronises with the GPU."""
    return begin_measuring(model, buffer, objective, processes=processes)()


@torch.no_grad()
def begin_measuring(
    model: nn.Module,
    buffer: Buffer,
    objective: Objective,
    engine: Engine | None = None,
    processes: Processes = ALONE,
) -> Callable[[], Score]:
    """Queue a measurement of the present weights, and return a function that waits for the score."""
    model = without_reducer(model)
    device = compute_device(model)
    held = len(buffer)
    if engine is not None and engine.cuda and held == buffer.capacity:
        key = ("held out", held)
        sums = engine.persistent(key, lambda: torch.zeros(4, device=device))
        engine.call(key, lambda: sums.copy_(_sums(model, buffer, objective, device)))
    else:  # rows are still being added, so a captured graph would soon be of no use
        with evaluating(model):
            sums = _sums(model, buffer, objective, device, processes)

    def score() -> Score:
        loss, labels, hits, examples = processes.mean(sums).tolist()
        accuracy = hits / labels if hits >= 0 and labels else None
        tokens = objective.counts_tokens({name: buffer[name] for name in buffer.columns})
        return Score(loss / labels if labels else math.nan, accuracy, round(examples * processes.count), tokens)

    return score


@torch.no_grad()
def measure_parts(model: nn.Module, buffer: Buffer, objective: Objective, processes: Processes = ALONE) -> list[float]:
    """Return the loss on each held-out example, or on ``PARTS`` parts if there are more, in evaluation mode."""
    model = without_reducer(model)
    device = compute_device(model)
    rows = buffer.held_out()
    held = len(next(iter(rows.values())))
    losses = []
    with evaluating(model), objective.cast(device):
        for start, stop, count in parts(model, held, -(-held // PARTS), processes):
            part = {name: column[start:stop].to(device) for name, column in rows.items()}
            value = objective.value(objective.output(model, objective.plain_inputs(part), part), part, 0.0)
            losses += [value] if count else []
    values: list[float] = torch.stack(losses).tolist()
    return [value for part in processes.gather(values) for value in part]


@torch.no_grad()
def mean_overlap(model: nn.Module, buffer: Buffer, objective: Objective, processes: Processes = ALONE) -> float | None:
    """Return the mean IoU on the held-out images, in evaluation mode; None unless each pixel has a class.

    The IoU of a class in an image is TP / (TP + FP + FN) over its pixels. It is averaged over the classes that the
    image has, and then over the images. (A mean over all classes would depend on those that few images have.)
    """
    columns = {name: buffer[name] for name in buffer.columns}
    y = columns.get("y")
    if y is None or y.ndim != 3 or y.is_floating_point() or not objective.classifies(columns):
        return None
    model, rows = without_reducer(model), buffer.held_out()
    device = compute_device(model)
    means = []  # of each image; NaN: it has no label
    with evaluating(model), objective.cast(device):
        for start, stop, count in parts(model, len(rows["y"]), BATCH, processes):
            part = {name: column[start:stop].to(device) for name, column in rows.items()}
            logits = objective.output(model, objective.plain_inputs(part), part)
            axis = class_axis(part["y"], logits)
            labels, found = class_labels(part["y"]).flatten(1), logits.argmax(axis).flatten(1)
            means.append(overlaps(labels, found, logits.shape[axis])[:count])
    images = torch.cat(means).double()
    total, number = processes.mean(torch.stack([images.nansum(), (~images.isnan()).sum()]))
    return float(total / number)


def overlaps(labels: Tensor, predictions: Tensor, classes: int) -> Tensor:
    """Return the mean IoU of each row over the classes in its labels; NaN if all of them are ``NO_LABEL``.

    >>> overlaps(torch.tensor([[0, 0, 1, 1]]), torch.tensor([[0, 1, 1, 1]]), classes=3)  # 1/2 and 2/3
    tensor([0.5833])
    """
    known = labels != NO_LABEL
    first = torch.arange(len(labels), device=labels.device)[:, None] * classes

    def count(pixels: Tensor, chosen: Tensor) -> Tensor:
        return (first + pixels)[chosen].bincount(minlength=len(labels) * classes).view(len(labels), classes)

    present, found = count(labels, known), count(predictions, known)
    right = count(labels, known & (labels == predictions))
    return torch.where(present > 0, right / (present + found - right), torch.nan).nanmean(1)


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


def _sums(
    model: nn.Module, buffer: Buffer, objective: Objective, device: torch.device, processes: Processes = ALONE
) -> Tensor:
    """Return the sum of the losses, the number of labels, of hits (negative: no classes) and of examples."""
    rows = buffer.held_out()
    sums = torch.zeros(4, device=device)
    with in_evaluation_mode(model), objective.cast(device):
        for start, stop, count in parts(model, len(next(iter(rows.values()))), pass_size(rows, BATCH), processes):
            part = {name: column[start:stop].to(device) for name, column in rows.items()}
            output = objective.output(model, objective.plain_inputs(part), part)
            value = objective.value(output, part, 0.0).float()
            hits, labels = objective.hits(output, part) or (-1, objective.examples(part, 0.0))
            if count:
                numbers = [_number(n, device) for n in (labels, hits, count)]
                sums += torch.stack([value * numbers[0], *numbers])
    return sums


def parts(model: nn.Module, examples: int, size: int, processes: Processes) -> Iterator[tuple[int, int, int]]:
    """Yield where each batch of at most ``size`` examples begins and ends, and how many of them count.

    The processes of a sharded network must call it equally often. One with fewer examples calls it with its first
    example, which does not count.
    """
    calls = -(-examples // size)
    if is_sharded(model):
        calls = max(processes.gather(calls))
    for start in range(0, calls * size, size):
        stop = min(start + size, examples)
        yield (start, stop, stop - start) if start < examples else (0, 1, 0)


def _number(value: int | Tensor, device: torch.device) -> Tensor:
    """Return a number as a tensor, in a way that a CUDA graph can capture."""
    return value.float() if isinstance(value, Tensor) else torch.full((), float(value), device=device)
