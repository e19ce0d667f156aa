"""Train a network on a stream of tasks: one run, from top to bottom.

On a GPU the steps are captured into CUDA graphs and replayed (``compute.engine``), without a GPU-to-CPU sync inside an
epoch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, final

from torch import Tensor, nn

from forgetless.compute.engine import Engine
from forgetless.compute.modules import unwrap
from forgetless.config.catalogue import nearest
from forgetless.data.stream import Stream
from forgetless.methods import Method
from forgetless.methods.learner import Batch
from forgetless.methods.loader import Loader, batch_sizes
from forgetless.methods.method import take_step
from forgetless.repair.non_finite import NonFiniteError
from forgetless.repair.restoring import copies, copy_all
from forgetless.training import events
from forgetless.training.checks import check_parts
from forgetless.training.evaluation import Accuracies, evaluate
from forgetless.training.events import Event
from forgetless.training.repair import PROGRESS
from forgetless.training.settings import TrainSettings
from forgetless.training.state import RunState, check_state, is_built_in


def train(
    stream: Stream,
    method: Method,
    network: nn.Module,
    settings: TrainSettings | None = None,
    *,
    state: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """Train ``network`` in place on ``stream``, and return an iterator of events.

        for event in train(stream, ER(), network, epochs=5, lr=0.03, buffer=200):
            ...
        print(event.result.accuracy_matrix)

    Args:
        stream: The tasks, in order.
        method: How to train on them.
        network: Any module that returns logits.
        settings: The settings; default: ``TrainSettings()``.
        state: What ``Run.state_dict`` returned: resume from there, with the settings of that run. The device, the
            precision and the way to compute may differ.
        **changes: Settings by name, which replace those of ``settings``: see ``TrainSettings``.

    Returns:
        The run. All settings are checked before its first event; the last event is ``Ended(result)``.
    """
    names = [field.name for field in fields(TrainSettings)]
    for name in changes:
        if name not in names:
            raise TypeError(f"train has no setting {name!r}{nearest(name, names)}")
    settings = TrainSettings(**changes) if settings is None else replace(settings, **changes)
    check_parts(stream, method, network, settings)
    if state is not None:
        check_state(state, stream, method, settings)
    capture = is_built_in(method) and is_built_in(unwrap(network)) if settings.capture is None else settings.capture
    engine = Engine(
        settings.device, precision=settings.precision, capture=capture, deterministic=settings.deterministic,
        seed=settings.seed,
    )  # fmt: skip
    return Run(partial(RunState, stream, method, network, settings, engine), network, engine, state)


@final
class Run(Iterator[Event]):
    """A run under way: an iterator of its events. Between two events it changes no global state of torch.

    On a GPU, work may still be queued at ``Stepped`` and ``Waiting``. Look at the network at other events.
    """

    def __init__(
        self, set_up: Callable[[], RunState], network: nn.Module, engine: Engine, state: Mapping[str, Any] | None
    ) -> None:
        self.network, self.engine = network, engine
        self._run: RunState | None = None  # until the first event is asked for
        self._events = self._train(set_up, state)

    def __next__(self) -> Event:
        with self.engine.active():
            event = next(self._events)
        if not isinstance(event, events.Stepped | events.Waiting):
            self.engine.synchronize()
        return event

    def state_dict(self) -> dict[str, Any] | None:
        """Return everything that ``train(…, state=…)`` needs to resume from here with the same bits.

        Returns:
            Plain data and tensors, or None where a run cannot resume: before its first steps, and while a task ends.
        """
        if self._run is None or not self._run.resumable:
            return None
        self.engine.synchronize()
        return self._run.state_dict()

    def close(self) -> None:
        """Stop the run."""
        self._events.close()

    def _train(self, set_up: Callable[[], RunState], state: Mapping[str, Any] | None) -> Generator[Event]:
        """Train on all tasks, or on what is left of them after ``state``."""
        run = self._run = set_up()
        if run.settings.anytime:
            run.restorable_state()  # an error now rather than after the first task
        resumed = state is not None
        if state is not None:
            run.load_state_dict(state)
            state = None  # frees its memory
        yield events.Began(len(run.tasks), _steps(run), run.position.task + 1, run.position.step)
        if not resumed:
            run.measured.untrained = _evaluate_untrained(run)
            run.repair.tracker.start()
        for task in range(run.position.task, len(run.tasks)):
            run.position.task = task
            yield from _train_task(run)
        result = run.result()
        run.freeze(frozen=False)  # the network is the caller's again
        yield events.Ended(result)


def _train_task(run: RunState) -> Generator[Event]:
    """Train on one task, let the method end it, and evaluate. The last task may be followed by a finetuning."""
    position, measured = run.position, run.measured
    last = position.task == len(run.tasks) - 1
    if not (run.trained or run.finishing):
        loader = run.loader or run.load_task()
        for epoch in range(position.epoch, run.settings.epochs):
            run.begin_epoch(epoch)
            yield from _train_epoch(run, loader)
        run.end_epochs()
    if not run.trained:
        with run.clock.phase("train"):
            if not run.finishing:
                run.end_task()
            if last:
                yield from _finish_method(run, resumable=True)
            else:
                run.repair.tracker.boundary()
    if last and run.settings.finetune is not None:
        yield from _finetune_at_the_end(run)
    if run.settings.anytime and not last:
        measured.add((yield from _evaluate_as_if_ended(run)))
    else:
        measured.add(_evaluate(run))
    seen = len(run.stream.tasks) if run.method.joint else position.task + 1
    yield events.TaskEnded(position.task + 1, measured.class_il[-1], measured.task_il[-1], position.step, seen)
    position.epoch = 0


def _train_epoch(run: RunState, loader: Loader) -> Generator[Event]:
    """Train on the batches of one epoch, or on what is left of them."""
    position, repair = run.position, run.repair
    with run.clock.phase("train"):
        if position.batch == 0 and not repair.under_way:
            loader.shuffle()
        for size in loader.sizes[position.batch :]:
            yield from _train_step(run, loader, size)
            position.batch += 1
            if position.step % PROGRESS == 0:
                run.resumable = True
                yield position.stepped()
                run.resumable = False
        position.batch = 0
        row = repair.tracker.mark()
        assert row is not None
        if run.engine.will_wait():
            yield events.Waiting()
        loss = _mean_loss(run, loader)
    run.measured.losses.append(events.EpochLoss(position.task + 1, position.epoch + 1, loss))
    yield events.EpochEnded(position.task + 1, position.epoch + 1, loss, repair.groups(row), position.step)


def _train_step(run: RunState, loader: Loader, size: int) -> Generator[Event]:
    """Take one step, finetune if that is due, and offer the batch to the buffer (Algorithm 2 of the paper)."""
    learner, engine, position = run.learner, run.engine, run.position
    resumed = run.repair.under_way  # the state was saved in the finetuning after this step
    if not resumed:
        loader.stage(size)
        position.step += 1
    stored = 0 if run.buffer is None else len(run.buffer)
    cost = (size, min(stored, run.method.draws(learner)), position.task > 0)
    if resumed or (run.settings.finetune is not None and run.repair.due(position.step, size, stored)):
        if not resumed:
            run.pending = examples = engine.persistent(("pending", size), dict[str, Tensor])
            key = ("train", "update", size, stored)
            update = partial(engine.call, key, lambda: _keep(examples, _update(run, loader, size)))
            learner.run_counted("train", cost, update)
            if not run.repair.tuned and engine.will_wait():  # else it yields where it reads from the GPU
                yield events.Waiting()
        repaired = yield from _finetune(run)
        assert run.pending is not None
        if run.offers:  # a plain call if resumed
            engine.call(("train", "offer", size, stored), partial(_offer, run, run.pending))
        run.pending = None
        if repaired is not None:
            yield repaired
    else:
        update = partial(engine.call, ("train", size, stored), lambda: _offer(run, _update(run, loader, size)))
        learner.run_counted("train", cost, update)
    if run.offers:
        learner.buffer.advance(size)


def _update(run: RunState, loader: Loader, size: int) -> dict[str, Tensor]:
    """Update the network on the next batch, and return what the buffer stores of it."""
    x, y = loader.take(size)
    loss, columns = take_step(run.method, run.learner, Batch(x, y, run.position.task))
    loader.record_loss(loss)
    if not run.offers:
        return {"x": x, "y": y}
    if missing := run.columns - columns.keys():
        raise ValueError(
            f"step() of {type(run.method).__name__} does not return {', '.join(sorted(missing))}, which its columns or "
            "the finetuning's distillation need"
        )
    return {"x": x, "y": y} | {name: columns[name] for name in run.columns}


def _keep(examples: dict[str, Tensor], batch: dict[str, Tensor]) -> None:
    """Copy a batch over an earlier one: the memory of a captured step is used again by other captured steps."""
    if examples:
        copy_all(examples, batch)
    else:
        examples.update(copies(batch))


def _offer(run: RunState, examples: dict[str, Tensor]) -> None:
    """Offer examples to the buffer, unless the method fills it."""
    if run.offers:
        run.learner.buffer.write(examples)


def _finetune(run: RunState, *, final: bool = False) -> Generator[Event, None, events.Repaired | None]:
    """Finetune the chosen groups, if any are chosen by now."""
    with run.clock.phase("finetune"):
        run.resumable = not run.repair.tuned
        repaired = yield from run.repair.run(run.position.stepped(), final=final)
        run.resumable = False
    if repaired is not None:
        run.repair.count(repaired)
        run.measured.finetunings.append(repaired)
    return repaired


def _finetune_at_the_end(run: RunState) -> Generator[Event]:
    """Finetune after the last task, and warn if nothing was chosen."""
    if run.measured.before_finetuning is None:
        run.measured.before_finetuning = tuple(_evaluate(run).class_il)
        run.resumable = True
        yield events.Trained(run.position.step)
    if (repaired := (yield from _finetune(run, final=True))) is not None:
        if not any(done.kept for done in run.measured.finetunings):
            run.repair.selection.chosen = ()
        yield repaired
        return
    changes = run.repair.tracker.task_changes()
    reason = run.repair.selection.why_not(changes, "Name the groups (--groups), or lower the threshold")
    warnings.warn(f"nothing was finetuned at the end: {reason}", stacklevel=2)
    run.repair.selection.chosen = ()


def _finish_method(run: RunState, *, resumable: bool) -> Generator[Event]:
    """Let the method finish. With ``resumable``, states may be saved between the parts of its work."""
    for _ in run.method.finish(run.learner) or ():
        run.finishing = run.resumable = resumable
        yield run.position.stepped()
        run.resumable = False
    run.finishing = False


def _evaluate_as_if_ended(run: RunState) -> Generator[Event, None, Accuracies]:
    """Return the accuracies that a stream ending after this task would have. The run itself is left unchanged."""
    learner, method, engine = run.learner, run.method, run.engine
    with run.clock.phase("evaluate"):
        weights = {name: tensor.detach().clone() for name, tensor in run.network.state_dict().items()}
        gathered = run.restorable_state()
        random_state, flops, finetuned = engine.state_dict(), learner.flops.copy(), learner.finetuned
        yield from _finish_method(run, resumable=False)
        if run.settings.finetune is not None:
            upkeep = run.repair.upkeep_state()
            yield from run.repair.run(run.position.stepped(), final=True)
            run.repair.load_upkeep_state(upkeep)
        accuracies = evaluate(learner, method, run.stream)
        run.network.load_state_dict(weights)
        if gathered is not None:
            method.load_state_dict(learner, gathered)
            engine.discard_graphs("train")  # its captured graphs hold the tensors that were replaced
        engine.load_state_dict(random_state)
        learner.flops = flops
        learner.finetuned = finetuned
    return accuracies


def _evaluate(run: RunState) -> Accuracies:
    with run.clock.phase("evaluate"):
        return evaluate(run.learner, run.method, run.stream)


def _evaluate_untrained(run: RunState) -> tuple[float, ...]:
    """Return the accuracies before training, or raise ``ValueError`` if the network cannot process the images."""
    try:
        return tuple(_evaluate(run).class_il)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, NonFiniteError) or "CUDA" in str(error):
            raise
        x = run.learner.zero_inputs(1)
        images = f"images of {run.stream.name!r}, {tuple(x.shape[1:])} in {x.dtype}"
        raise ValueError(f"the network cannot take {images}: {error}") from error


def _steps(run: RunState) -> int:
    """Return the number of training steps of the run, and warn if k-FPF never finetunes during them."""
    batches = [batch_sizes(len(task.train), run.settings.batch, run.learner.smallest_batch) for task in run.tasks]
    steps = sum(map(len, batches)) * run.settings.epochs
    finetune = run.settings.finetune
    if finetune is not None and (finetune.every or 0) > steps:
        unused = f"every is {finetune.every}, but training has {steps} steps"
        warnings.warn(f"{unused}: it finetunes once, at the end", stacklevel=3)
    return steps


def _mean_loss(run: RunState, loader: Loader) -> float:
    """Return the mean loss of the epoch, or raise ``NonFiniteError`` that names the first step that diverged."""
    mean = loader.mean_loss()
    if math.isfinite(mean):
        return mean
    position = run.position
    step = position.step - len(loader.sizes) + loader.first_bad_batch() + 1
    raise NonFiniteError(
        f"the loss became {mean} at step {step}, in epoch {position.epoch + 1} of task {position.task + 1}; try a "
        f"smaller lr than {run.settings.lr}, or a smaller weight of what the method adds to the loss, and check that "
        "the examples are finite"
    )
