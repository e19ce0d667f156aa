"""Where a repair that tunes itself works, and what it has done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from torch import nn

from forgetless.compute.distributed import ALONE, Processes
from forgetless.compute.engine import Engine
from forgetless.memory.buffer import Buffer
from forgetless.repair.descent import Descent
from forgetless.repair.finetuning import Finetuning
from forgetless.repair.held_out import Score, begin_measuring, mean_overlap, measure_parts
from forgetless.repair.objective import Objective

T = TypeVar("T")


class Rate(NamedTuple):
    """An optimizer and its learning rate."""

    optimizer: str
    lr: float


@dataclass(frozen=True)
class Outcome:
    """What a repair did: the held-out scores, the steps undone, the loss of each step that was kept, and the rate."""

    before: Score
    after: Score
    undone: int
    losses: tuple[float, ...]
    rate: Rate  # at the end, the one that the search found


class Bench(NamedTuple):
    """Where a repair works: how to begin a finetuning of some tensors, and how to measure on held-out examples.

    ``begin_measuring`` queues a measurement of all of them and returns a function that waits for the score,
    ``measure_parts`` returns the loss on each, and ``measure_overlap`` the mean IoU if their pixels have labels.
    """

    begin: Callable[[Collection[str], Descent], Finetuning]
    begin_measuring: Callable[[], Callable[[], Score]]
    measure_parts: Callable[[], list[float]]
    measure_overlap: Callable[[], float | None]

    @staticmethod
    def for_buffer(
        model: nn.Module,
        buffer: Buffer,
        objective: Objective,
        begin: Callable[[Collection[str], Descent], Finetuning],
        engine: Engine | None = None,
        processes: Processes = ALONE,
    ) -> Bench:
        """Return a bench that measures ``model`` on the held-out examples of ``buffer``."""
        return Bench(
            begin,
            lambda: begin_measuring(model, buffer, objective, engine, processes),
            lambda: measure_parts(model, buffer, objective, processes),
            lambda: mean_overlap(model, buffer, objective, processes),
        )


def drain(work: Generator[Any, None, T]) -> T:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
