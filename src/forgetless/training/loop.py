"""One run: a method trains a network on a stream. ``train`` yields frozen events; bars and records only read them.

for event in train(stream, ER(), network, epochs=1, batch=10, lr=0.1, buffer=500):
    ...                                             # the last one is Ended(result)

On a GPU the steps are captured into graphs and replayed (``engine``), and nothing is read by the host inside an epoch.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.engine import Engine
from forgetless.compute.flops import known
from forgetless.compute.modules import compiled, joined, unwrap
from forgetless.config.catalogue import nearest
from forgetless.data.stream import Stream
from forgetless.methods import Method
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.loader import Feed, batch_sizes
from forgetless.methods.method import check_declaration, take_step
from forgetless.repair import finetune as finetuning
from forgetless.repair import sensitivity as dynamics
from forgetless.repair.buffer import Buffer
from forgetless.repair.selection import STILL
from forgetless.training.evaluation import Accuracies, evaluate
from forgetless.training.events import (
    Began,
    Ended,
    EpochEnded,
    Event,
    Repaired,
    Result,
    Stepped,
    TaskEnded,
    Trained,
    Waiting,
)
from forgetless.training.repair import PROGRESS, Repair
from forgetless.training.settings import TrainSettings
from forgetless.training.state import copied, to_hashable


class Run(Iterator[Event]):
    """A run on its way: an iterator of its events. Between two of them nothing global is changed.

    On a GPU, work of the run may still be queued at ``Stepped`` and ``Waiting``: look at the network at other events.
    """

    def __init__(self, training: _Training, state: Mapping[str, Any] | None) -> None:
        self.engine, self.network = training.engine, training.network
        self._training = training
        self._events = training.events(state)

    def __next__(self) -> Event:
        with self.engine.active():
            event = next(self._events)
        if not isinstance(event, Stepped | Waiting):
            self.engine.synchronize()
        return event

    def state_dict(self) -> dict[str, Any] | None:
        """All that is needed to go on from here bit for bit: plain data and tensors, for ``train(…, state=…)``.

        None where a run cannot stop: before its first steps, and while a task ends, which from the last state is
        repeated.
        """
        if not self._training.resumable:
            return None
        self.engine.synchronize()
        return self._training.state_dict()

    def close(self) -> None:
        self._events.close()


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
    unknown_names = changes.keys() - {field.name for field in fields(TrainSettings)}
    if unknown_names:
        known = [field.name for field in fields(TrainSettings)]
        raise TypeError(f"train has no setting {min(unknown_names)!r}{nearest(min(unknown_names), known)}")
    settings = replace(settings, **changes) if settings is not None else TrainSettings(**changes)
    check_run(stream, method, network, settings)
    engine = Engine(
        settings.device,
        precision=settings.precision,
        capture=(is_own(method) and is_own(unwrap(network))) if settings.capture is None else settings.capture,
        deterministic=settings.deterministic,
        seed=settings.seed,
    )
    training = _Training(stream, method, network, settings, engine)
    if state is not None:
        training.check(state)
    return Run(training, state)


def is_own(part: Method | nn.Module) -> bool:
    """Whether a method or network is one of forgetless's, which are known to be the same when replayed."""
    return type(part).__module__.startswith(("forgetless.methods.", "forgetless.networks."))


def check_run(stream: Stream, method: Method, network: nn.Module, settings: TrainSettings) -> None:
    """Raise ``ValueError`` for settings that do not fit the stream, the method or each other."""
    kinds = {"stream": (stream, Stream), "method": (method, Method), "network": (network, nn.Module)}
    for setting, (value, kind) in kinds.items():
        if not isinstance(value, kind):
            given = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
            raise ValueError(f"{setting} is {given}; it must be an object of the class {kind.__name__}")
    name = type(method).__name__
    if stream.scenario not in method.scenarios:
        raise ValueError(f"{name} is for {method.scenarios[0]}-incremental streams only; {stream.name} is not one")
    check_declaration(method)
    buffer, policy, finetune, drawn = settings.buffer, settings.policy, settings.finetune, settings.replay
    if method.memory != "none" and buffer < drawn:
        raise ValueError(
            f"buffer is {buffer}; {drawn} examples are drawn at a time (replay), so it must be {drawn} or more"
        )
    if policy != "reservoir" and method.memory in ("balanced", "own"):
        raise ValueError(f"policy is {policy!r}, but {name} fills the buffer in a way of its own: leave it out")
    if policy != "reservoir" and method.memory == "none" and finetune is None:
        raise ValueError(f"policy is {policy!r}, but neither {name} nor a finetuning keeps a buffer: leave it out")
    if finetune is None:
        return
    if buffer < finetune.batch:
        raise ValueError(f"buffer is {buffer}; finetuning draws {finetune.batch} at a time, so it must be that or more")
    pixels = min(stream.shape[-2:]) if len(stream.shape) == 3 else 0
    if finetune.pad and finetune.pad >= pixels:
        said = f"below the images' {pixels} pixels" if pixels else f"0: an example has shape {stream.shape}, no image"
        raise ValueError(f"pad of the finetuning (in a run: ft_pad) is {finetune.pad}; it must be {said}")
    if finetune.groups == "auto" and not method.sequential:
        raise ValueError(f"groups is 'auto', but {name} never trains on one task after another: name the groups")
    if finetune.distill and method.memory in ("own", "balanced") and "logits" not in method.columns:
        raise ValueError(f"distill is {finetune.distill}, but the memory of {name} holds no logits to distil from")


class _Training:
    """One run: what it is made of, how far it is, and its events."""

    def __init__(
        self, stream: Stream, method: Method, network: nn.Module, settings: TrainSettings, engine: Engine
    ) -> None:
        self.stream, self.method, self.network, self.engine = stream, method, network, engine
        self.epochs, self.batch, self.lr, self.replay = settings.epochs, settings.batch, settings.lr, settings.replay
        self.capacity, self.policy, self.weight_decay = settings.buffer, settings.policy, settings.weight_decay
        self.settings, self.freeze = settings.finetune, settings.freeze
        self.anytime, self.seed, self._resident = settings.anytime, settings.seed, settings.resident
        self._given = stream  # as its caller has it, whose checksum is known for all runs that share it
        self.resumable = False
        self.step = self.number = self.epoch = self.index = 0  # steps made; of this task, epoch and batch, from 0
        self.untrained: tuple[float, ...] = ()
        self.class_il: list[tuple[float, ...]] = []
        self.task_il: list[tuple[float, ...]] = []
        self.losses: list[tuple[int, int, float]] = []
        self.finetunings: list[Repaired] = []
        self.waits: dict[str, Tensor] | None = None  # what the buffer is to take once the finetuning under way is done
        self.finishing = False  # whether it is between two parts of what the method does at the end
        self.trained = False  # whether the run goes on from where its training was over
        self.before: tuple[float, ...] | None = None  # accuracies before the finetuning at the end
        self.seconds = {"train": 0.0, "finetune": 0.0, "evaluate": 0.0, "total": 0.0}
        self._epoch_since: tuple[float, float] | None = None  # when the epoch under way began, and the finetuning then
        self._repair_since: float | None = None  # when the finetuning under way began

    def _set_up(self) -> None:
        network, engine, method = self.network, self.engine, self.method
        network.to(engine.device).train()
        engine.suit(network)
        if engine.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        resident = fits(self.stream, engine.device) if self._resident is None else self._resident
        self.stream = stream = self.stream.to(engine.device, images=resident)
        memory = method.memory if method.memory != "none" or self.settings is None else "reservoir"
        self.offers = memory in ("reservoir", "balanced")  # whether each batch is offered to the buffer
        self.buffer = None
        generator = engine.generator(self.seed + 1)  # also without a buffer: the state of a run with one then fits
        if memory != "none":
            policy = "balanced" if memory == "balanced" else self.policy
            self.buffer = Buffer(self.capacity, policy=policy, device=engine.device, generator=generator)
        self.columns = set(method.columns)
        if self.settings is not None and self.settings.distill:
            self.columns.add("logits")
        self.learner = Learner(
            network, stream, lr=self.lr, batch=self.batch, replay=self.replay, weight_decay=self.weight_decay,
            buffer=self.buffer, engine=engine, seed=self.seed,
            costs=_costs(method, network, stream, self.replay, self.freeze),
        )  # fmt: skip
        method.begin(self.learner)
        if self.anytime:
            self._gathered()  # an error now, not after the first task
        self.order = engine.generator(self.seed + 2)
        self.repair = Repair(unwrap(network), self.learner, self.settings, engine.generator(self.seed + 3))
        self.frozen = self._to_freeze()
        self.tasks = stream.joint().tasks[:1] if method.joint else stream.tasks
        self.feed: Feed | None = None

    @contextmanager
    def _taking_its_images(self) -> Iterator[None]:
        """What torch says of a network that does not fit the images says not what they are."""
        try:
            yield
        except torch.OutOfMemoryError:  # lanes wait for room
            raise
        except (RuntimeError, TypeError) as error:
            own_way = type(self.method).predict is not Method.predict
            if own_way or isinstance(error, finetuning.NonFiniteError) or "CUDA" in str(error):
                raise
            blank = self.learner.blank(1)
            images = f"images of {self.stream.name!r}, {tuple(blank.shape[1:])} in {blank.dtype}"
            raise ValueError(f"the network cannot take {images}: {error}") from error

    def _to_freeze(self) -> list[str]:
        """Names of the tensors of ``freeze``; an error if nothing would be left to train or to finetune."""
        selection = self.repair.selection
        if not self.freeze:
            return []
        if self.method.joint:
            name = type(self.method).__name__
            raise ValueError(
                f"freeze is {', '.join(self.freeze)}, but {name} has no second task before which to freeze"
            )
        groups = dynamics.select(dict.fromkeys(selection.grouping, 0.0), groups=self.freeze)
        names = selection.names(groups)
        if {name for name, _ in unwrap(self.network).named_parameters() if name in selection.tracked} <= set(names):
            raise ValueError(f"freeze is {', '.join(self.freeze)}; nothing would be left to train")
        if selection.fixed and set(selection.chosen or ()) <= set(groups):
            chosen = ", ".join(selection.chosen or ())
            raise ValueError(f"groups is {chosen}, freeze is {', '.join(groups)}; nothing would be left to finetune")
        return names

    def events(self, state: Mapping[str, Any] | None) -> Generator[Event]:
        """All of the run, or what comes after ``state``."""
        self._began = time.perf_counter()
        self._set_up()
        steps = (
            sum(len(batch_sizes(len(task.train), self.batch, self.learner.least)) for task in self.tasks) * self.epochs
        )
        if self.settings is not None and (every := self.settings.every or 0) > steps:
            said = f"every is {every}, but there are {steps} steps of training: it finetunes once, at the end"
            warnings.warn(said, stacklevel=2)
        yield Began(len(self.tasks), steps)
        if state is None:
            with self._taking_its_images():
                self.untrained = tuple(self._evaluate().class_il)
            self.repair.tracker.start()
        else:
            self._load(state)
            state = None  # not kept for as long as the run goes on
        for number in range(self.number, len(self.tasks)):
            last = number == len(self.tasks) - 1
            if not self.trained:
                if not self.finishing:
                    yield from self._train_on(number)
                yield from self._end_task(number, last=last)
            if last and self.settings is not None:
                if self.before is None:
                    self.before = tuple(self._evaluate().class_il)
                    self.resumable = True
                    yield Trained(self.step)
                done = yield from self._finetune(number, self.epochs - 1)
                if done is None:
                    warnings.warn(f"nothing was finetuned at the end: {self._why_not()}", stacklevel=2)
                    self.repair.selection.chosen = ()
                else:
                    yield done
            accuracies = (yield from self._as_if_over(number)) if self.anytime and not last else self._evaluate()
            self.class_il.append(tuple(accuracies.class_il))
            self.task_il.append(tuple(accuracies.task_il))
            seen = len(self.stream.tasks) if self.method.joint else number + 1
            yield TaskEnded(number + 1, self.class_il[-1], self.task_il[-1], self.step, seen)
            self.epoch = 0
        self.seconds["total"] += time.perf_counter() - self._began
        result = self._result()
        _freeze(unwrap(self.network), self.frozen, frozen=False)  # it is the caller's
        yield Ended(result)

    def _why_not(self) -> str:
        """Why nothing was chosen to finetune, and what would be."""
        changes, selection = self.repair.tracker.task_changes(), self.repair.selection
        if len(self.tasks) == 1 and not selection.fixed:
            return "the stream has one task, and S_g compares two; name the groups"
        why = selection.why_not(changes)
        return f"{why}; " + (
            "does the method update the network?" if why == STILL else "name other groups, or lower the threshold"
        )

    def _end_task(self, number: int, *, last: bool) -> Generator[Event]:
        self._epoch_since = time.perf_counter(), self.seconds["finetune"]
        if not self.finishing:
            self.method.end_task(self.learner, self.tasks[number], number)
            if number == 0 and self.frozen:
                _freeze(unwrap(self.network), self.frozen)
                self.learner.take_parameters()
        if last:
            yield from self._finish(number, stops=True)
        else:
            self.repair.tracker.boundary()
        self.seconds, self._epoch_since = self._seconds(), None

    def _finish(self, number: int, *, stops: bool) -> Generator[Event]:
        """What the method does at the end; with ``stops`` the run may stop between its parts. No loss tells of it."""
        if type(self.method).finish is Method.finish:
            return
        parts = self.method.finish(self.learner)
        for _ in parts if isinstance(parts, Iterator) else ():
            self.finishing = self.resumable = stops
            yield Stepped(self.step, number + 1, self.epochs)
            self.resumable = False
        self.finishing = False
        if not all(bool(parameter.isfinite().all()) for parameter in self.network.parameters()):
            raise finetuning.NonFiniteError(
                f"the weights became infinite or NaN in what {type(self.method).__name__} does at the end; "
                "try a smaller learning rate"
            )

    def _gathered(self) -> dict[str, Any] | None:
        """What the method has gathered, to be put back after an end that is undone; None if it does nothing there."""
        if type(self.method).finish is Method.finish:
            return None
        try:
            gathered: dict[str, Any] = copied(self.method.state_dict(self.learner))
        except TypeError as error:
            raise ValueError(
                f"anytime is True, but what the method does at its end cannot be undone: {error}"
            ) from error
        return gathered

    def _as_if_over(self, number: int) -> Generator[Event, None, Accuracies]:
        """The accuracies that an end of the stream after this task would have given; the run is left as it was."""
        at = time.perf_counter()
        learner, method, engine = self.learner, self.method, self.engine
        weights = {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()}
        gathered = self._gathered()
        numbers, spent, finetuned = engine.state_dict(), learner.ledger.state_dict(), learner.finetuned
        yield from self._finish(number, stops=False)
        if self.settings is not None:
            yield from self.repair.run(self.step, number + 1, self.epochs)
        self.seconds["evaluate"] += time.perf_counter() - at
        found = self._evaluate()
        self.network.load_state_dict(weights)
        if gathered is not None:
            method.load_state_dict(learner, gathered)
            engine.forget("train")  # what it captured
        engine.load_state_dict(numbers)
        learner.ledger.load_state_dict(spent)
        learner.finetuned = finetuned
        return found

    def _train_on(self, number: int) -> Generator[Event]:
        """The epochs of a task, from where the run is."""
        engine, learner, repair = self.engine, self.learner, self.repair
        self.number = number
        if self.feed is None:
            self.feed = Feed(self.tasks[number].train, self.batch, engine, self.order, least=learner.least)
        feed = self.feed
        for epoch in range(self.epoch, self.epochs):
            self._epoch_since = time.perf_counter(), self.seconds["finetune"]
            self.epoch = epoch
            if self.index == 0 and not repair.under_way:
                feed.shuffle()
            for size in feed.sizes[self.index :]:
                self.resumable = False
                yield from self._step(size)
                self.index += 1
                if self.step % PROGRESS == 0:
                    self.resumable = True
                    yield Stepped(self.step, number + 1, epoch + 1)
            self.resumable = False
            row = repair.tracker.mark()
            assert row is not None
            if engine.will_wait():
                yield Waiting()
            loss = self._mean_loss()
            self.seconds, self._epoch_since = self._seconds(), None
            self.losses.append((number + 1, epoch + 1, loss))
            self.index = 0
            yield EpochEnded(number + 1, epoch + 1, loss, repair.groups(row), self.step)
        feed.close()
        self.feed = None
        engine.forget("train")

    def _step(self, size: int) -> Generator[Event]:
        """One step of the method, the finetuning that is due after it, and the buffer's taking of the batch."""
        engine, learner, feed = self.engine, self.learner, self.feed
        assert feed is not None
        goes_on = self.repair.under_way  # a state was taken inside a finetuning, after the step before it
        if not goes_on:
            feed.stage(size)
            self.step += 1
        held = 0 if self.buffer is None else len(self.buffer)
        cost = (size, min(held, self.method.draws(learner)), self.number > 0)
        if self.settings is not None and self.settings.due(self.step) and held:
            # Algorithm 2: the finetuning comes between the step and the buffer's taking of its batch.
            if not goes_on:
                self.waits = learner.counted("train", cost, partial(self._advance, size))
                if engine.will_wait():
                    yield Waiting()
            done = yield from self._finetune(self.number, self.epoch)
            assert self.waits is not None
            self._remember(self.waits)
            self.waits = None
            if done is not None:
                yield done
        else:
            whole = partial(engine.call, ("train", size, held), lambda: self._remember(self._advance(size)))
            learner.counted("train", cost, whole)
        if self.offers:
            learner.buffer.advance(size)

    def _advance(self, size: int) -> dict[str, Tensor]:
        """The step itself; gives what the buffer is to take."""
        assert self.feed is not None
        x, y = self.feed.take(size)
        loss, found = take_step(self.method, self.learner, Batch(x, y, self.number))
        self.feed.note(loss)
        if not self.offers:
            return {"x": x, "y": y}
        if missing := self.columns - found.keys():
            raise ValueError(
                f"the step of {type(self.method).__name__} gives no column {', '.join(sorted(missing))}, which its "
                "columns or a finetuning that distils need"
            )
        return {"x": x, "y": y} | {name: found[name] for name in self.columns}

    def _remember(self, rows: dict[str, Tensor]) -> None:
        if self.offers:
            self.learner.buffer.write(rows)

    def _mean_loss(self) -> float:
        """Of the epoch; an error that names the step if one was not finite."""
        assert self.feed is not None
        mean = self.feed.mean_loss()
        if not math.isfinite(mean):
            first = self.step - len(self.feed.sizes) + self.feed.first_bad() + 1
            x = self.stream.tasks[self.number].train.x
            advice = f"try a smaller lr than {self.lr}, or a smaller weight of what the method adds to the loss"
            if x.is_floating_point() and not bool(x.isfinite().all()):
                advice = "the examples of this task hold NaN or infinity"
            raise finetuning.NonFiniteError(
                f"the loss became {mean} at step {first}, in epoch {self.epoch + 1} of task {self.number + 1}; {advice}"
            )
        return mean

    def _finetune(self, number: int, epoch: int) -> Generator[Event, None, Repaired | None]:
        self._repair_since = time.perf_counter()
        self.resumable = True
        done = yield from self.repair.run(self.step, number + 1, epoch + 1)
        self.resumable = False
        self.seconds["finetune"] += time.perf_counter() - self._repair_since
        self._repair_since = None
        if done is not None:
            self.repair.count(done)
            self.finetunings.append(done)
        return done

    def _seconds(self) -> dict[str, float]:
        """Of each phase, with the epoch and the finetuning that are under way."""
        now, made = time.perf_counter(), dict(self.seconds)
        if self._repair_since is not None:
            made["finetune"] += now - self._repair_since
        if self._epoch_since is not None:
            began, repaired = self._epoch_since
            made["train"] += now - began - (made["finetune"] - repaired)
        return made

    def _evaluate(self) -> Accuracies:
        at = time.perf_counter()
        found = evaluate(self.learner, self.method, self.stream)
        self.seconds["evaluate"] += time.perf_counter() - at
        return found

    def _result(self) -> Result:
        repair = self.repair
        tracker = repair.tracker
        changes = tracker.task_changes() if self.method.sequential else {}  # else they are the finetuning's
        return Result(
            accuracy_matrix=tuple(self.class_il),
            task_il_matrix=tuple(self.task_il),
            untrained=self.untrained,
            before_finetuning=self.before,
            losses=tuple(self.losses),
            epoch_changes=tuple((row.task, row.epoch, repair.groups(row)) for row in tracker.between_epochs),
            task_changes=tuple((row.task, row.epoch, repair.groups(row)) for row in tracker.between_tasks),
            tensor_changes=repair.tensor_changes(),
            boundaries=tuple(dynamics.boundaries([repair.weights(row) for row in tracker.between_epochs])),
            profile=repair.selection.profile(
                changes, len({row.task for row in tracker.between_tasks}) if changes else 0
            ),
            finetunings=tuple(self.finetunings),
            flops=self.learner.ledger.to_dict(),
            seconds={phase: round(value, 3) for phase, value in self.seconds.items()},
            steps=self.step,
            network=self.network,
            engine=self.engine.to_dict(),
        )

    def _kept(self) -> dict[str, Any]:
        """The settings that are the same in all parts of a run."""
        finetune = None
        if self.settings is not None:
            given = asdict(self.settings)
            given["groups"] = given["groups"] if isinstance(given["groups"], str) else list(given["groups"])
            finetune = {name: value.item() if hasattr(value, "item") else value for name, value in given.items()}
        own: tuple[Any, ...] = fields(self.method) if is_dataclass(self.method) else ()
        options = {one.name: getattr(self.method, one.name) for one in own if one.init}
        return {
            "stream": self.stream.name,
            "data": self._given.checksum,
            "method": type(self.method).__name__,
            **{name: value for name, value in options.items() if isinstance(value, bool | int | float | str)},
            "epochs": self.epochs,
            "batch": self.batch,
            "lr": self.lr,
            "replay": self.replay,
            "buffer": self.capacity,
            "policy": self.policy,
            "weight_decay": self.weight_decay,
            "finetune": finetune,
            "freeze": list(self.freeze),
            "anytime": self.anytime,
            "seed": self.seed,
        }

    def check(self, state: Mapping[str, Any]) -> None:
        """An error if ``state`` is none, or of a run with other settings or data."""
        if not isinstance(state, Mapping) or not {"place", "network", "before", "finetuning"} <= state.keys():
            raise ValueError(f"state is a {type(state).__name__} that is not of a run; it must be what state_dict gave")
        saved = state.get("settings", {})  # states of before 0.17 have none
        trained = state["before"] is not None and state["finetuning"] is None  # any finetuning may follow: see Trained
        for name, here in self._kept().items():
            if saved.get(name, here) != here and not (name == "finetune" and trained):
                if name == "data":
                    raise ValueError(f"{self.stream.name!r} holds other data than the run had that the state is of")
                was = f"the state is of a run with {saved[name]!r}: go on with that, or begin anew"
                raise ValueError(f"{name} is {here!r}, but {was}")

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": self._kept(),
            "place": [self.step, self.number, self.epoch, self.index],
            "network": {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()},
            "buffer": None if self.buffer is None else self.buffer.state_dict(),
            "method": copied(self.method.state_dict(self.learner)),  # a method may go on changing its tensors in place
            "tracker": self.repair.tracker.state_dict(),
            "chosen": None if self.repair.selection.fixed else self.repair.selection.chosen,
            "finetuned": self.learner.finetuned,
            "feed": None if self.feed is None else self.feed.state_dict(),  # None: at the end
            "finetuning": self.repair.state_dict(),
            "waits": copied(self.waits),
            "finishing": self.finishing,
            "before": self.before,
            "ledger": self.learner.ledger.state_dict(),
            "costs": [[key, flops] for key, flops in self.learner.costs.items()] if compiled(self.network) else [],
            "engine": self.engine.state_dict(),
            "untrained": self.untrained,
            "class_il": list(self.class_il),
            "task_il": list(self.task_il),
            "losses": list(self.losses),
            "finetunings": [[f.step, f.groups, f.first_loss, f.last_loss] for f in self.finetunings],
            "seconds": self._seconds() | {"total": self.seconds["total"] + time.perf_counter() - self._began},
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        self.step, self.number, self.epoch, self.index = state["place"]
        try:
            self.network.load_state_dict(state["network"])
        except RuntimeError as error:
            raise ValueError(f"the state is of another network; go on with that one, or begin anew: {error}") from error
        self.trained = state["before"] is not None
        self.before = tuple(state["before"]) if self.trained and self.settings is not None else None
        self.finishing = state.get("finishing", False)  # states of before 0.11 have none
        if self.frozen and (self.number > 0 or self.trained or self.finishing):
            _freeze(unwrap(self.network), self.frozen)
            self.learner.take_parameters()
        if self.buffer is not None:
            self.buffer.load_state_dict(state["buffer"])
        self.method.load_state_dict(self.learner, state["method"])
        self.repair.tracker.load_state_dict(state["tracker"])
        if not self.repair.selection.fixed:
            self.repair.selection.chosen = None if state["chosen"] is None else tuple(state["chosen"])
        self.learner.finetuned = state["finetuned"]
        if state["feed"] is not None:
            split = self.tasks[self.number].train
            self.feed = Feed(split, self.batch, self.engine, self.order, least=self.learner.least)
            self.feed.load_state_dict(state["feed"])
        self.repair.load_state_dict(state["finetuning"])
        waits = state["waits"]
        self.waits = None if waits is None else {name: rows.to(self.engine.device) for name, rows in waits.items()}
        self.learner.ledger.load_state_dict(state["ledger"])
        self.learner.costs.update({to_hashable(key): flops for key, flops in state.get("costs", [])})
        self.untrained = tuple(state["untrained"])
        self.class_il = [tuple(row) for row in state["class_il"]]
        self.task_il = [tuple(row) for row in state["task_il"]]
        self.losses = [(task, epoch, loss) for task, epoch, loss in state["losses"]]
        self.finetunings = [Repaired(step, tuple(groups), *losses) for step, groups, *losses in state["finetunings"]]
        self.seconds = dict(state["seconds"])
        self.engine.load_state_dict(state["engine"])


def fits(stream: Stream, device: torch.device) -> bool:
    """Whether the images go onto the device: on a GPU, if they are there or take less than half of what is free."""
    if device.type != "cuda" or stream.tasks[0].train.x.is_cuda:
        return True
    return stream.bytes < torch.cuda.mem_get_info(device)[0] / 2


def _costs(
    method: Method, network: nn.Module, stream: Stream, replay: int, freeze: tuple[str, ...]
) -> dict[object, int]:
    """What runs like this one are known to cost; of methods and networks of forgetless only, whose text says it all.

    A step that is counted is not compiled, and a network that is compiled must not do other steps so each time.
    """
    if not (is_own(method) and is_own(unwrap(network))) or compiled(network):
        return {}
    takes = tuple(parameter.requires_grad for parameter in network.parameters())
    return known((repr(network), takes, repr(method), stream.shape, stream.classes, len(stream.tasks), replay, freeze))


def _freeze(network: nn.Module, names: Collection[str], *, frozen: bool = True) -> None:
    """Parameters take no gradients any more, statistics are no longer updated; or they do and are again."""
    for name, parameter in network.named_parameters():
        if name in names:
            parameter.requires_grad_(not frozen)
    for path, module in network.named_modules():
        if any(joined(path, name) in names for name, _ in module.named_buffers(recurse=False)):
            module.training = network.training and not frozen  # of this module alone


def with_seed(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network whose initial weights come from ``seed``; the global random state is left as it was."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # not those of GPUs, which would have to be put back too
        return build()
