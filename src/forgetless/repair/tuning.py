"""Repairs that tune themselves: the optimizer, the rate and the length are found by measuring on held-out examples.

A repair during training is two steps of SGD, because many short repairs help more than a few long ones; if a training
step earns more, it is longer. After 18 steps without a measurement the next one is measured. It is undone, and the rate
is halved, if it raised the loss on the buffer's held-out examples by more than a fifth; then the next one is measured,
too. After one that is kept, the rate recovers.

The repair at the end first searches the optimizer and the learning rate by short trials from the same weights. Then it
is a sequence of short finetunings: one that lowered the held-out loss raises the rate, one that did not is undone and
halves it, and the repair ends when that happened several times in a row. If a rate is given, it is one long finetuning.
All of it is undone if the loss fell by a small share and by no more than the scatter over the examples explains, or if
the mean IoU of images with labelled pixels fell. (During training such trials mislead, because they look only a few
steps ahead and the network still has much to learn.)

The search can be limited to Adam for networks that have forgotten most of the examples. SGD wins the trials there, but
it ends lower if training has left many ReLUs dead.

Everything here is a generator that yields between two parts of the work, so that runs can share a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping
from typing import Any, final

from forgetless.repair.bench import Bench, Outcome, Rate
from forgetless.repair.descent import Descent
from forgetless.repair.finetuning import Finetuned, Finetuning
from forgetless.repair.held_out import Score, fell
from forgetless.repair.non_finite import NonFiniteError

SHORT, LONG = 2, 50  # the steps of a repair during training: as many as the budget has earned, and no fewer and no more
TRUSTED = 18  # steps of repairs during training that are not measured, after one that was measured and kept
CHUNK = 20  # steps of a finetuning at the end between two measurements
LR = 0.05  # of repairs during training, until one is undone
BATCH_NORM_LR = 0.03  # the same for networks with batch norm
CLIP = 1.0  # the largest norm of a gradient of language models, as is usual when they are trained
USUAL = 4.0  # SGD at these rates copes with inputs and targets up to this mean square
NOISE = 0.2  # during training a repair may raise the loss by this share: few examples measure it
TRIAL = 5  # steps of a trial of the search
STARTS = {"sgd": 0.1, "adam": 0.001}  # the rates at which the search begins
FACTOR = 3.0  # between neighbouring rates of the search
SMALLEST = 1e-7  # the search goes no further: below this, steps get lost in the precision of float32
ENOUGH = 0.97  # the search takes the smallest rate with this share of the best trial's improvement, and SGD if it can
GROWTH = 1.5  # of the rate after a finetuning at the end that lowered the loss; otherwise it is halved
CLEAR = 0.5  # a fall of the loss at the end is clear from this share over the root of the number of examples
KNOWN = 0.001  # below this cross-entropy, examples that are all predicted correctly need no repair
PATIENCE = 3  # the repair at the end stops after this many finetunings in a row that did not lower the loss

INFINITE = Score(math.inf, None, 0)


@final
class Tuner:
    """Finds how to repair a network, and repairs it.

    ``batch``, ``distill`` and ``clip`` are those of every finetuning, ``lr`` is the highest rate of repairs during
    training.
    """

    def __init__(self, batch: int, distill: float, lr: float = LR, clip: float | None = None) -> None:
        self._batch, self._distill, self._clip = batch, distill, clip
        self._highest = self._limit = lr  # of repairs during training: for values of about 1, and for the present ones
        self.lr = lr  # of the next repair during training
        self.steps = 0  # taken so far, including trials and steps that were undone
        self.examples = 0  # of all these steps
        self.measured = 0  # measurements so far
        self._trusted = 0  # steps of repairs during training that are not measured, before one that is
        self._failure: NonFiniteError | None = None  # of the last finetuning whose loss or weights were not finite

    @property
    def measures(self) -> bool:
        """Whether the next repair during training is measured."""
        return self._trusted == 0

    def allow_for(self, scale: float) -> None:
        """Limit the rate of repairs during training, for inputs and targets whose mean square is about ``scale``."""
        self._limit = self._highest
        if scale > USUAL:
            self._limit *= USUAL / scale
            self.lr = min(self.lr, self._limit)

    def repair_briefly(
        self, bench: Bench, names: Collection[str], steps: int, batch: int
    ) -> Generator[None, None, Outcome | Finetuned]:
        """Repair the named tensors during training, by a few steps on batches of this size."""
        rate = Rate("sgd", self.lr)
        before = (yield from self._first_score(bench)) if self.measures else None
        run = self._begin(bench, names, rate, steps=steps, batch=batch)
        done = yield from self._descend(run)
        if before is None:
            if done is not None:
                self._trusted = max(0, self._trusted - steps)
                return done
            self._trusted = 0
            self.lr /= 2
            return Finetuned((), run.names)
        after = INFINITE if done is None else (yield from self._score_of(bench, run))
        if after.loss - before.loss <= NOISE * abs(before.loss):
            self._trusted = TRUSTED
            self.lr = min(self._limit, 2 * self.lr)
            return Outcome(before, after, 0, tuple(run.losses()), rate)
        run.undo()
        self.lr /= 2
        return Outcome(before, before, run.steps, (), rate)

    def repair_fully(
        self,
        bench: Bench,
        names: Collection[str],
        limit: int,
        *,
        skip_known: bool = False,
        adam_below: float = 0.0,
        rate: Rate | None = None,
    ) -> Generator[None, None, Outcome]:
        """Repair the named tensors at the end: search a rate, then finetune while that helps.

        Both together take about ``limit`` steps, but one finetuning always follows the search. If a rate is given, it
        is one finetuning of ``limit`` steps, which is undone if the held-out loss did not fall. With ``skip_known``
        nothing is done if the network knows the held-out examples by heart: its training has seen them, so a lower loss
        on them would say nothing about other data. The search tries only Adam if the accuracy on the held-out examples
        is below ``adam_below``.
        """
        before, earlier = (yield from self._first_score(bench)), self.steps
        self._trusted = 0
        if skip_known and before.accuracy == 1 and before.loss < KNOWN:
            return Outcome(before, before, 0, (), Rate("sgd", STARTS["sgd"]))
        if rate is not None and not rate.lr:
            return Outcome(before, before, 0, (), rate)
        if rate is not None:
            return (yield from self._repair_until_done(bench, names, before, rate, limit, limit))
        found = yield from self._search(bench, names, before, adam_below)
        left = max(CHUNK, limit - (self.steps - earlier))
        return (yield from self._repair_until_done(bench, names, before, found, left, CHUNK))

    def _repair_until_done(
        self, bench: Bench, names: Collection[str], before: Score, found: Rate, limit: int, chunk: int
    ) -> Generator[None, None, Outcome]:
        rate, best, first = found, before, None
        parts, overlap = self._parts(bench), self._overlap(bench)
        losses: list[float] = []
        undone = failures = 0
        while len(losses) + undone < limit and failures < PATIENCE:
            run = self._begin(bench, names, rate, steps=chunk)
            score = yield from self._finetune(bench, run)
            if score.loss < best.loss:
                best, failures, first = score, 0, first or run
                losses += run.losses()
                rate = Rate(rate.optimizer, rate.lr * GROWTH)
            else:
                run.undo()
                undone, failures = undone + run.steps, failures + 1
                rate = Rate(rate.optimizer, rate.lr / 2)
            del run  # and its copy of the weights, before the next one is made
        clear = before.loss - best.loss >= CLEAR / math.sqrt(len(parts)) * abs(before.loss)
        if first and not ((clear or fell(parts, self._parts(bench))) and self._overlap(bench) >= overlap):
            first.undo()
            return Outcome(before, before, undone + len(losses), (), found)
        return Outcome(before, best, undone, tuple(losses), found)

    def state_dict(self) -> dict[str, Any]:
        """Return what later repairs depend on."""
        return {
            "lr": self.lr,
            "steps": self.steps,
            "examples": self.examples,
            "measured": self.measured,
            "trusted": self._trusted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``."""
        self.lr, self.steps = state["lr"], state["steps"]
        self.examples, self.measured = state["examples"], state["measured"]
        self._trusted = state["trusted"]

    def _search(
        self, bench: Bench, names: Collection[str], before: Score, adam_below: float = 0.0
    ) -> Generator[None, None, Rate]:
        """Return a rate, found by trials from the present weights, each of ``TRIAL`` steps, which are undone."""
        trials: dict[Rate, float] = {}

        def attempt(rate: Rate) -> Generator[None, None, float]:
            run = self._begin(bench, names, rate, steps=TRIAL)
            score = yield from self._finetune(bench, run)
            run.undo()
            trials[rate] = score.loss
            return score.loss

        forgotten = before.accuracy is not None and before.accuracy < adam_below
        for optimizer in ["adam"] if forgotten else STARTS:
            yield from attempt(Rate(optimizer, STARTS[optimizer]))
        rate = min(trials, key=trials.__getitem__)
        while True:
            loss, rate = trials[rate], Rate(rate.optimizer, rate.lr / FACTOR)
            if rate.lr < SMALLEST or loss <= (yield from attempt(rate)) < math.inf:
                break
        best = min(trials.values())
        if best == math.inf:
            raise self._failure or NonFiniteError("the loss is infinite on the held-out examples after every trial")
        enough = max(best, before.loss - ENOUGH * (before.loss - best))
        eligible = [rate for rate, loss in trials.items() if loss <= enough]
        return min(eligible, key=lambda rate: (list(STARTS).index(rate.optimizer), rate.lr))

    def _begin(
        self, bench: Bench, names: Collection[str], rate: Rate, *, steps: int = CHUNK, batch: int | None = None
    ) -> Finetuning:
        """Begin a finetuning whose rate is annealed to 0 by a cosine, and count its steps."""
        rates = tuple(rate.lr * (1 + math.cos(math.pi * step / steps)) / 2 for step in range(steps))
        descent = Descent(rates, batch or self._batch, self._distill, rate.optimizer, spare=True, clip=self._clip)
        run = bench.begin(names, descent)
        self.steps += steps
        self.examples += steps * run.drawn
        return run

    def _finetune(self, bench: Bench, run: Finetuning) -> Generator[None, None, Score]:
        """Take the steps of a finetuning and return the score; infinite if a loss or a weight was not finite."""
        done = yield from self._descend(run)
        return INFINITE if done is None else (yield from self._score_of(bench, run))

    def _descend(self, run: Finetuning) -> Generator[None, None, Finetuned | None]:
        """Take the steps of a finetuning; undo them and return None if a loss or a weight was not finite."""
        try:
            while run.left:
                run.advance(max(SHORT, run.steps // 2))
                yield
            return run.finish()
        except NonFiniteError as failure:  # the network is as before
            self._failure = failure
            return None

    def _score_of(self, bench: Bench, run: Finetuning) -> Generator[None, None, Score]:
        """Return the score after a finetuning."""
        try:
            score = yield from self._score(bench)
        except BaseException:  # Ctrl-C too
            run.undo()
            raise
        return score if math.isfinite(score.loss) else INFINITE

    def _first_score(self, bench: Bench) -> Generator[None, None, Score]:
        """Return the score before a repair; raise an error if the loss is not finite."""
        before = yield from self._score(bench)
        if not math.isfinite(before.loss):
            raise NonFiniteError(
                f"the loss on the held-out examples is {before.loss} before the repair: the network or the examples "
                "hold NaN or infinity. Try a smaller learning rate in training, and check the examples"
            )
        return before

    def _score(self, bench: Bench) -> Generator[None, None, Score]:
        self.measured += 1
        score = bench.begin_measuring()
        yield
        return score()

    def _parts(self, bench: Bench) -> list[float]:
        self.measured += 1
        return bench.measure_parts()

    def _overlap(self, bench: Bench) -> float:
        """Return the mean IoU, or 0 without labelled pixels."""
        overlap = bench.measure_overlap()
        self.measured += overlap is not None
        return overlap or 0.0
