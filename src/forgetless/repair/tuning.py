"""Repairs that tune themselves: the optimizer, the rate and the length are found by measuring on held-out examples.

The first repair and the one at the end search the optimizer and the learning rate by short trials from the same
weights, judged by the loss on the buffer's held-out examples. A repair during training is one short finetuning, which
is undone if it raised that loss. The repair at the end is a sequence of them: one that lowered the loss raises the
rate, one that did not is undone and halves it, and the repair ends when that happened several times in a row.
Everything here is a generator that yields between two parts of the work, so that runs can share a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, final

from forgetless.repair.descent import Descent
from forgetless.repair.finetune import Finetuning, NonFiniteError
from forgetless.repair.held_out import Score

CHUNK = 20  # steps of a finetuning between two measurements
TRIAL = 10  # steps of a trial
STARTS = {"sgd": 0.1, "adam": 0.001}  # the rates at which the search begins
FACTOR = 3.0  # between neighbouring rates
SMALLEST = 1e-7  # the search goes no further: below this, steps get lost in the precision of float32
ENOUGH = 0.9  # the search takes the smallest rate with this share of the best trial's improvement, and SGD if it can
ENOUGH_AT_END = 0.97  # that share at the end, where no training follows that too large a rate could spoil
NOISE = 1.2  # during training a repair may end with this multiple of the loss: few examples measure it
GROWTH = 1.5  # of the rate in the repair at the end after a finetuning that lowered the loss; otherwise it is halved
PATIENCE = 3  # the repair at the end stops after this many finetunings in a row that did not lower the loss

T = TypeVar("T")


class Rate(NamedTuple):
    """An optimizer and its learning rate."""

    optimizer: str
    lr: float


@dataclass(frozen=True)
class Outcome:
    """What a repair did: the held-out scores, the steps kept and undone, and the loss of each step that was kept."""

    before: Score
    after: Score
    undone: int
    losses: tuple[float, ...]


class Bench(NamedTuple):
    """Where a repair works: how to begin a finetuning of some tensors, and how to measure on held-out examples."""

    begin: Callable[[Collection[str], Descent], Finetuning]
    measure: Callable[[], Score]


def drain(work: Generator[Any, None, T]) -> T:
    """Run a generator to its end and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result


@final
class Tuner:
    """Finds how to repair a network, and repairs it. ``batch`` and ``distill`` are those of every finetuning."""

    def __init__(self, batch: int, distill: float) -> None:
        self._batch, self._distill = batch, distill
        self.rate: Rate | None = None
        self.repairs = 0
        self.steps = 0  # taken so far, including trials and steps that were undone
        self.measured = 0  # measurements so far
        self._failure: NonFiniteError | None = None  # of the last finetuning whose loss or weights were not finite

    def repair(self, bench: Bench, names: Collection[str], limit: int | None) -> Generator[None, None, Outcome]:
        """Repair the named tensors, and return what that did.

        Without a ``limit`` this is a short repair during training. With one it is the repair at the end, in at most
        that many steps besides the search.
        """
        before = self._score(bench)
        if not math.isfinite(before.loss):
            raise NonFiniteError(
                f"the loss on the held-out examples is {before.loss} before the repair: the network or the examples "
                "hold NaN or infinity. Try a smaller learning rate in training, and check the examples"
            )
        if self.rate is None or limit is not None:
            yield from self._search(bench, names, before, ENOUGH if limit is None else ENOUGH_AT_END)
        self.repairs += 1
        if limit is None:
            return (yield from self._repair_once(bench, names, before))
        return (yield from self._repair_until_done(bench, names, before, limit))

    def _repair_once(self, bench: Bench, names: Collection[str], before: Score) -> Generator[None, None, Outcome]:
        assert self.rate is not None
        run = bench.begin(names, self._descent(self.rate))
        after = yield from self._finetune(bench, run)
        if after.loss <= NOISE * before.loss:
            return Outcome(before, after, 0, tuple(run.losses()))
        run.undo()
        self.rate = Rate(self.rate.optimizer, self.rate.lr / 2)
        return Outcome(before, before, run.steps, ())

    def _repair_until_done(
        self, bench: Bench, names: Collection[str], before: Score, limit: int
    ) -> Generator[None, None, Outcome]:
        assert self.rate is not None
        rate, best = self.rate, before
        losses: list[float] = []
        undone = failures = 0
        while len(losses) + undone < limit and failures < PATIENCE:
            run = bench.begin(names, self._descent(rate))
            score = yield from self._finetune(bench, run)
            if score.loss < best.loss:
                best, failures = score, 0
                losses += run.losses()
                rate = Rate(rate.optimizer, rate.lr * GROWTH)
            else:
                run.undo()
                undone, failures = undone + run.steps, failures + 1
                rate = Rate(rate.optimizer, rate.lr / 2)
        return Outcome(before, best, undone, tuple(losses))

    def fresh(self) -> Tuner:
        """Return a tuner that has not searched yet."""
        return Tuner(self._batch, self._distill)

    def add_cost(self, other: Tuner) -> None:
        """Count the work of another tuner as this one's."""
        self.steps += other.steps
        self.measured += other.measured

    def state_dict(self) -> dict[str, Any]:
        """Return what later repairs depend on."""
        rate = None if self.rate is None else list(self.rate)
        return {"rate": rate, "repairs": self.repairs, "steps": self.steps, "measured": self.measured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        self.rate = None if state["rate"] is None else Rate(*state["rate"])
        self.repairs, self.steps, self.measured = state["repairs"], state["steps"], state["measured"]

    def _search(self, bench: Bench, names: Collection[str], before: Score, share: float) -> Generator[None, None, None]:
        """Find the rate by trials from the present weights, each of ``TRIAL`` steps, which are undone."""
        trials: dict[Rate, float] = {}

        def attempt(rate: Rate) -> Generator[None, None, float]:
            run = bench.begin(names, self._descent(rate, TRIAL))
            score = yield from self._finetune(bench, run)
            run.undo()
            trials[rate] = score.loss
            return score.loss

        for start in STARTS.items():
            yield from attempt(Rate(*start))
        rate = min(trials, key=trials.__getitem__)
        while True:
            loss, rate = trials[rate], Rate(rate.optimizer, rate.lr / FACTOR)
            if rate.lr < SMALLEST or loss <= (yield from attempt(rate)) < math.inf:
                break
        best = min(trials.values())
        if best == math.inf:
            raise self._failure or NonFiniteError("the loss is infinite on the held-out examples after every trial")
        enough = max(best, before.loss - share * (before.loss - best))
        eligible = [rate for rate, loss in trials.items() if loss <= enough]
        self.rate = min(eligible, key=lambda rate: (list(STARTS).index(rate.optimizer), rate.lr))

    def _finetune(self, bench: Bench, run: Finetuning) -> Generator[None, None, Score]:
        """Take the steps of a finetuning and return the score; infinite if a loss or a weight was not finite."""
        self.steps += run.steps
        try:
            while run.left:
                run.advance(run.steps // 2)
                yield
            run.finish()
        except NonFiniteError as failure:  # the network is as before
            self._failure = failure
            return Score(math.inf, None, 0)
        try:
            score = self._score(bench)
        except BaseException:  # Ctrl-C too
            run.undo()
            raise
        return score if math.isfinite(score.loss) else Score(math.inf, None, 0)

    def _score(self, bench: Bench) -> Score:
        self.measured += 1
        return bench.measure()

    def _descent(self, rate: Rate, steps: int = CHUNK) -> Descent:
        waves = [(1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps)]
        return Descent(tuple(rate.lr * wave for wave in waves), self._batch, self._distill, rate.optimizer, spare=True)
