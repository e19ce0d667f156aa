"""One run: a method trains a network on a stream. ``train`` yields frozen events; bars and records only read them.

for event in train(stream, ER(), network, epochs=1, batch=10, lr=0.1, buffer=500):
    ...                                             # the last one is Ended(result)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

import torch
from torch import nn

from forgetless import dynamics, finetuning
from forgetless.buffer import Buffer, check_whole
from forgetless.evaluation import evaluate
from forgetless.finetuning import Finetune
from forgetless.flops import training_flops
from forgetless.learner import Batch, Learner
from forgetless.methods import Method
from forgetless.profile import Profile
from forgetless.selection import Selection
from forgetless.stream import Stream
from forgetless.tracker import Row, Tracker

EVERY = 50  # steps between two events of progress


@dataclass(frozen=True)
class Began:
    tasks: int
    steps: int


@dataclass(frozen=True)
class Stepped:
    """Progress; nothing was read from the device for it."""

    step: int
    task: int
    epoch: int


@dataclass(frozen=True)
class EpochEnded:
    task: int
    epoch: int
    loss: float
    changes: dict[str, float]  # by group, since the last epoch


@dataclass(frozen=True)
class Repaired:
    """A finetuning was made: after this step, of these groups, with these first and last losses."""

    step: int
    groups: tuple[str, ...]
    first_loss: float
    last_loss: float


@dataclass(frozen=True)
class TaskEnded:
    task: int
    accuracies: tuple[float, ...]  # class-IL, of all tasks, in percent


@dataclass(frozen=True)
class Result:
    """All that a run found out. Matrices are [after task][on task], in percent.

    Their last row is after any finetuning at the end; ``before_finetuning`` is that row before it.
    """

    accuracy_matrix: tuple[tuple[float, ...], ...]
    task_il_matrix: tuple[tuple[float, ...], ...]
    untrained: tuple[float, ...]
    before_finetuning: tuple[float, ...] | None
    losses: tuple[tuple[int, int, float], ...]  # (task, epoch, mean loss)
    epoch_changes: tuple[tuple[int, int, dict[str, float]], ...]  # (task, epoch, change by group)
    task_changes: tuple[tuple[int, int, dict[str, float]], ...]
    profile: Profile
    finetunings: tuple[Repaired, ...]
    flops: dict[str, int]
    seconds: dict[str, float]
    steps: int
    network: nn.Module


@dataclass(frozen=True)
class Ended:
    result: Result


Event = Began | Stepped | EpochEnded | Repaired | TaskEnded | Ended


def train(
    stream: Stream,
    method: Method,
    network: nn.Module,
    *,
    epochs: int = 1,
    batch: int = 32,
    lr: float = 0.1,
    replay: int | None = None,
    buffer: int = 0,
    weight_decay: float = 0.0,
    finetune: Finetune | None = None,
    freeze: Collection[str] = (),
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[Event]:
    """Train ``network`` in place on ``stream``; the settings are checked before the first event.

    replay     examples drawn from the buffer at a time (default: ``batch``)
    buffer     examples the buffer holds; 0 where neither the method nor ``finetune`` needs one
    finetune   FPF or k-FPF beside the method: see ``Finetune``
    freeze     groups of parameters that no longer move after the first task (the paper's freeze study)
    """
    check_run(stream, method, epochs=epochs, batch=batch, lr=lr, replay=replay, buffer=buffer, finetune=finetune)
    return _train(
        stream, method, network, epochs, batch, lr, replay or batch, buffer, weight_decay, finetune, tuple(freeze),
        seed, torch.device(device),
    )  # fmt: skip


def check_run(
    stream: Stream,
    method: Method,
    *,
    epochs: int,
    batch: int,
    lr: float,
    replay: int | None,
    buffer: int,
    finetune: Finetune | None,
) -> None:
    """An error that names the setting, for anything that could not end well."""
    check_whole("epochs", epochs)
    check_whole("batch", batch)
    if replay is not None:
        check_whole("replay", replay)
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"lr is {lr!r}; it must be a finite number above 0")
    name = type(method).__name__
    if stream.scenario not in method.scenarios:
        raise ValueError(f"{name} is for {method.scenarios[0]}-incremental streams only; {stream.name} is not one")
    drawn = replay or batch
    if (method.memory != "none" or finetune is not None) and buffer < drawn:
        raise ValueError(f"buffer is {buffer}; {drawn} examples are drawn at a time, so it must be {drawn} or more")
    if finetune is None:
        return
    finetune.check()
    if buffer < finetune.batch:
        raise ValueError(f"buffer is {buffer}; finetuning draws {finetune.batch} at a time, so it must be that or more")
    if finetune.groups == "auto" and not method.tells_sensitivity:
        raise ValueError(f"groups is 'auto', but {name} never trains on one task after another: name the groups")
    if finetune.distill and method.memory in ("own", "balanced") and "logits" not in method.columns:
        raise ValueError(f"distill is {finetune.distill}, but the memory of {name} holds no logits to distil from")


def _train(
    stream: Stream,
    method: Method,
    network: nn.Module,
    epochs: int,
    batch: int,
    lr: float,
    replay: int,
    capacity: int,
    weight_decay: float,
    settings: Finetune | None,
    freeze: tuple[str, ...],
    seed: int,
    device: torch.device,
) -> Iterator[Event]:
    started = time.perf_counter()
    seconds = {"train": 0.0, "finetune": 0.0, "evaluate": 0.0}
    network.to(device).train()
    stream = stream.to(device)
    memory = method.memory if method.memory != "none" or settings is None else "reservoir"
    policy = "balanced" if memory == "balanced" else "reservoir"
    buffer = None if memory == "none" else Buffer(capacity, policy=policy, device=device, seed=seed + 1)
    columns = set(method.columns) | ({"logits"} if settings is not None and settings.distill else set())
    learner = Learner(
        network, stream, lr=lr, batch=batch, replay=replay, weight_decay=weight_decay, buffer=buffer, device=device,
        seed=seed,
    )  # fmt: skip
    order = torch.Generator(device).manual_seed(seed + 2)
    repair = Repair(network, learner, settings, torch.Generator(device).manual_seed(seed + 3))
    frozen = repair.selection.names(_known(freeze, repair.selection))
    tasks = stream.joint().tasks[:1] if method.joint else stream.tasks
    steps = sum(math.ceil(len(task.train) / batch) for task in tasks) * epochs
    yield Began(len(tasks), steps)

    untrained = tuple(evaluate(learner, method, stream).class_il)
    seconds["evaluate"] += time.perf_counter() - started
    step = 0
    class_il: list[tuple[float, ...]] = []
    task_il: list[tuple[float, ...]] = []
    losses: list[tuple[int, int, float]] = []
    finetunings: list[Repaired] = []
    before: tuple[float, ...] | None = None
    repair.tracker.start()
    for number, task in enumerate(tasks):
        for epoch in range(epochs):
            begin, repaired = time.perf_counter(), seconds["finetune"]
            total = torch.zeros((), device=device)
            batches = torch.randperm(len(task.train), generator=order, device=device).split(batch)
            for rows in batches:
                current = Batch(task.train.x.index_select(0, rows), task.train.y.index_select(0, rows), number)
                key = (len(rows), 0 if buffer is None else min(len(buffer), replay), number > 0)
                loss, found = learner.counted("train", key, lambda current=current: method.step(learner, current))  # type: ignore[misc]
                total += loss
                step += 1
                if settings is not None and settings.due(step) and buffer is not None and len(buffer):
                    at = time.perf_counter()
                    done = repair.run(step)
                    seconds["finetune"] += time.perf_counter() - at
                    if done is not None:
                        finetunings.append(done)
                        yield done
                if buffer is not None and memory != "own":
                    buffer.add({"x": current.x, "y": current.y} | {name: found[name] for name in columns})
                if step % EVERY == 0:
                    yield Stepped(step, number + 1, epoch + 1)
            row = repair.tracker.mark()
            mean = float(total) / len(batches)
            seconds["train"] += time.perf_counter() - begin - (seconds["finetune"] - repaired)
            if not math.isfinite(mean):
                raise finetuning.NonFiniteError(
                    f"the loss became {mean} in epoch {epoch + 1} of task {number + 1}; try a smaller lr than {lr}"
                )
            losses.append((number + 1, epoch + 1, mean))
            assert row is not None
            yield EpochEnded(number + 1, epoch + 1, mean, repair.groups(row))
        begin = time.perf_counter()
        method.end_task(learner, task, number)
        if number == 0 and frozen:
            _freeze(network, frozen)
            learner.take_parameters()
        if number < len(tasks) - 1:
            repair.tracker.boundary()
        else:
            method.finish(learner)
        seconds["train"] += time.perf_counter() - begin
        if number == len(tasks) - 1 and settings is not None:
            begin = time.perf_counter()
            before = tuple(evaluate(learner, method, stream).class_il)
            seconds["evaluate"] += time.perf_counter() - begin
            begin = time.perf_counter()
            done = repair.run(step)
            seconds["finetune"] += time.perf_counter() - begin
            if done is None:
                why = repair.selection.why_not(repair.tracker.task_changes())
                raise ValueError(
                    f"nothing could be finetuned at the end: {why}; name the groups, or lower the threshold"
                )
            finetunings.append(done)
            yield done
        begin = time.perf_counter()
        accuracies = evaluate(learner, method, stream)
        seconds["evaluate"] += time.perf_counter() - begin
        class_il.append(tuple(accuracies.class_il))
        task_il.append(tuple(accuracies.task_il))
        yield TaskEnded(number + 1, class_il[-1])
    seconds["total"] = time.perf_counter() - started
    changes = repair.tracker.task_changes()
    yield Ended(
        Result(
            tuple(class_il),
            tuple(task_il),
            untrained,
            before,
            tuple(losses),
            tuple((row.task, row.epoch, repair.groups(row)) for row in repair.tracker.between_epochs),
            tuple((row.task, row.epoch, repair.groups(row)) for row in repair.tracker.between_tasks),
            repair.selection.profile(changes, len(repair.tracker.between_tasks)),
            tuple(finetunings),
            learner.ledger.to_dict(),
            {phase: round(value, 3) for phase, value in seconds.items()},
            step,
            network,
        )
    )


class Repair:
    """FPF and k-FPF beside a method: what moved, what is chosen, and its finetuning."""

    def __init__(
        self, network: nn.Module, learner: Learner, settings: Finetune | None, generator: torch.Generator
    ) -> None:
        self._network, self._learner, self._generator = network, learner, generator
        self._settings = settings
        groups = "auto" if settings is None else settings.groups
        self.selection = Selection(network, groups, 1.0 if settings is None else settings.threshold)
        self.tracker = Tracker(network, self.selection.tracked, epochs=None, keep=None)

    def groups(self, row: Row) -> dict[str, float]:
        return self.selection.by_group(dict(zip(self.tracker.names, row.changes.tolist(), strict=True)))

    def run(self, step: int) -> Repaired | None:
        """One finetuning, if groups are chosen or can be by now."""
        settings, learner = self._settings, self._learner
        assert settings is not None
        chosen = self.selection.choice(self.tracker.task_changes())
        if not chosen:
            return None
        names = self.selection.names(chosen)
        with finetuning.only(self._network, finetuning.unfrozen(self._network, names)):
            cost = training_flops(self._network, torch.empty(min(settings.batch, len(learner.buffer)), *learner.shape))
        done = finetuning.finetune(
            self._network,
            learner.buffer,
            names,
            settings.steps,
            settings.lr,
            settings.distill,
            batch=settings.batch,
            augment=learner.augment,
            generator=self._generator,
        )
        learner.ledger.add("finetune", cost, settings.steps)
        learner.finetuned = True
        self.selection.chosen = chosen
        self.tracker.start()
        return Repaired(step, chosen, done.losses[0], done.losses[-1])


def _known(groups: tuple[str, ...], selection: Selection) -> tuple[str, ...]:
    return dynamics.select(dict.fromkeys(selection.grouping, 0.0), groups=groups) if groups else ()


def _freeze(network: nn.Module, names: Collection[str]) -> None:
    """Parameters take no gradients any more, statistics are no longer updated."""
    for name, parameter in network.named_parameters():
        if name in names:
            parameter.requires_grad_(False)
    for path, module in network.named_modules():
        if any(f"{path}.{name}" in names for name, _ in module.named_buffers(recurse=False)):
            module.eval()


def with_seed(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A network whose initial weights come from ``seed``; the global random state is left as it was."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return build()
