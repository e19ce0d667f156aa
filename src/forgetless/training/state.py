"""The state of a run: what it is made of, how far it is and what it has measured; how it is saved and loaded."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.engine import Engine
from forgetless.compute.modules import compiled, joined, unwrap
from forgetless.config.fields import settings_of
from forgetless.data.stream import Stream
from forgetless.memory.buffer import Buffer
from forgetless.methods import Method
from forgetless.methods.learner import Learner
from forgetless.methods.loader import Loader
from forgetless.networks.mlp import MLP
from forgetless.repair.shifts import boundaries
from forgetless.training.checks import tensors_to_freeze
from forgetless.training.evaluation import Accuracies
from forgetless.training.events import EpochLoss, GroupChanges, Repaired, Result, Stepped
from forgetless.training.plain import copied, flatten, to_hashable
from forgetless.training.repair import Repair
from forgetless.training.settings import TrainSettings

COMPUTED = {"device", "precision", "capture", "deterministic", "resident"}  # settings that may change on a resume


@dataclass
class Position:
    """How far a run is. Tasks, epochs and batches count from 0."""

    step: int = 0  # steps taken so far
    task: int = 0
    epoch: int = 0
    batch: int = 0

    def stepped(self) -> Stepped:
        """Return the event of the latest step."""
        return Stepped(self.step, self.task + 1, self.epoch + 1)


@dataclass
class Measured:
    """What a run has measured so far."""

    untrained: tuple[float, ...] = ()
    before_finetuning: tuple[float, ...] | None = None
    class_il: list[tuple[float, ...]] = field(default_factory=list)
    task_il: list[tuple[float, ...]] = field(default_factory=list)
    losses: list[EpochLoss] = field(default_factory=list)
    finetunings: list[Repaired] = field(default_factory=list)

    def add(self, accuracies: Accuracies) -> None:
        """Add a row to both accuracy matrices."""
        self.class_il.append(tuple(accuracies.class_il))
        self.task_il.append(tuple(accuracies.task_il))


class Clock:
    """The seconds of each phase so far. A phase that begins inside another one pauses it; ``total`` never pauses."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("train", "finetune", "evaluate", "total"), 0.0)
        self._phase: str | None = None
        self._since = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time inside as the phase ``name``."""
        outer = self._phase
        self._switch(name)
        yield
        self._switch(outer)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by phase up to now, including the phase under way."""
        self._switch(self._phase)
        return dict(self._seconds)

    def resume(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds of the earlier part of a run."""
        for name, value in seconds.items():
            self._seconds[name] += value

    def _switch(self, phase: str | None) -> None:
        now = time.perf_counter()
        if self._phase is not None:
            self._seconds[self._phase] += now - self._since
        self._seconds["total"] += now - self._since
        self._phase, self._since = phase, now


class RunState:
    """All parts of one run. Making it moves the network and the stream to the device and begins the method."""

    def __init__(
        self, stream: Stream, method: Method, network: nn.Module, settings: TrainSettings, engine: Engine
    ) -> None:
        self.clock = Clock()
        self.position = Position()
        self.measured = Measured()
        self.method, self.network, self.settings, self.engine = method, network, settings, engine
        self.loader: Loader | None = None  # of the task under way
        self.pending: dict[str, Tensor] | None = None  # examples the buffer takes after the finetuning under way
        self.resumable = False  # whether a state may be saved now
        self.finishing = False  # whether the method's finish() is under way
        self.trained = False  # whether the run was resumed after its training

        network.to(engine.device).train()
        engine.adapt(compiled=compiled(network), small_products=isinstance(unwrap(network), MLP))
        if engine.channels_last:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._stream = stream  # as it was passed: runs that share it also share its checksum
        resident = fits(stream, engine.device) if settings.resident is None else settings.resident
        self.stream = stream.to(engine.device, images=resident)
        self.tasks = self.stream.joint().tasks[:1] if method.joint else self.stream.tasks

        finetune, seed = settings.finetune, settings.seed
        memory = method.memory if method.memory != "none" or finetune is None else "reservoir"
        self.offers = memory in ("reservoir", "balanced")  # whether every batch is offered to the buffer
        self.columns = {*method.columns, "logits"} if finetune is not None and finetune.distill else {*method.columns}
        generator = engine.generator(seed + 1)  # made even without a buffer, so that a state fits runs with one
        self.buffer = None
        if memory != "none":
            policy = "balanced" if memory == "balanced" else settings.policy
            self.buffer = Buffer(settings.buffer, policy=policy, device=engine.device, seed=seed, generator=generator)
        self.learner = Learner(
            network, self.stream, lr=settings.lr, batch=settings.batch, replay=settings.replay,
            weight_decay=settings.weight_decay, buffer=self.buffer, engine=engine, seed=seed,
        )  # fmt: skip
        method.begin(self.learner)
        self.order = engine.generator(seed + 2)  # of the training examples
        self.repair = Repair(unwrap(network), self.learner, finetune, engine.generator(seed + 3))
        self.frozen = tensors_to_freeze(unwrap(network), method, self.repair.selection, settings.freeze)

    def end_task(self) -> None:
        """Let the method end the current task. After the first, freeze what the settings name."""
        self.method.end_task(self.learner, self.tasks[self.position.task], self.position.task)
        self.repair.look_again()  # the method may have frozen or replaced parts of the network
        if self.position.task == 0 and self.frozen:
            self.freeze()

    def freeze(self, *, frozen: bool = True) -> None:
        """Stop the gradients and the statistics of the groups that the settings freeze, or resume both."""
        network = unwrap(self.network)
        for name, parameter in network.named_parameters():
            if name in self.frozen:
                parameter.requires_grad_(not frozen)
        for path, module in network.named_modules():
            if any(joined(path, name) in self.frozen for name, _ in module.named_buffers(recurse=False)):
                module.training = network.training and not frozen  # only this module, not those inside it
        self.learner.take_parameters()
        self.repair.look_again()

    def load_task(self) -> Loader:
        """Return a new loader of the current task's training examples."""
        examples, smallest = self.tasks[self.position.task].train, self.learner.smallest_batch
        self.loader = Loader(examples, self.settings.batch, self.engine, self.order, smallest=smallest)
        return self.loader

    def begin_epoch(self, epoch: int) -> None:
        """Set the learning rate of an epoch of the current task."""
        self.position.epoch = epoch
        if (rate := self.settings.rate(epoch)) != self.learner.lr:
            self.learner.lr = rate
            self.engine.discard_graphs("train")  # they hold the rate

    def end_epochs(self) -> None:
        """Release what the current task was trained with, and restore the full learning rate."""
        assert self.loader is not None
        self.loader.close()
        self.loader = None
        self.learner.lr = self.settings.lr
        self.engine.discard_graphs("train")

    def restorable_state(self) -> Any:
        """Return a copy of the state of a method that has ``finish()``, or raise ``ValueError`` if it has none."""
        if type(self.method).finish is Method.finish:
            return None
        try:
            return copied(self.method.state_dict(self.learner))
        except TypeError as error:
            raise ValueError(f"anytime is True, but finish() of the method cannot be undone: {error}") from error

    def result(self) -> Result:
        """Return what the run has measured, once it is over."""
        repair, tracker, measured = self.repair, self.repair.tracker, self.measured
        changes = tracker.task_changes() if self.method.sequential else {}  # else they are the finetuning's
        comparisons = len({row.task for row in tracker.between_tasks}) if changes else 0
        weights = [repair.selection.weight_changes(tracker.by_tensor(row)) for row in tracker.between_epochs]
        return Result(
            accuracy_matrix=tuple(measured.class_il),
            task_il_matrix=tuple(measured.task_il),
            untrained=measured.untrained,
            before_finetuning=measured.before_finetuning,
            losses=tuple(measured.losses),
            epoch_changes=tuple(GroupChanges(*row[:2], repair.groups(row)) for row in tracker.between_epochs),
            task_changes=tuple(GroupChanges(*row[:2], repair.groups(row)) for row in tracker.between_tasks),
            tensor_changes=repair.tensor_changes(),
            boundaries=tuple(boundaries(weights)),
            profile=repair.selection.profile(changes, comparisons),
            finetunings=tuple(measured.finetunings),
            flops=dict(self.learner.flops),
            seconds={phase: round(value, 3) for phase, value in self.clock.seconds().items()},
            steps=self.position.step,
            network=self.network,
            engine=self.engine.to_dict(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a resumed run needs, as plain data and tensors."""
        position, measured, learner, repair = self.position, self.measured, self.learner, self.repair
        return {
            "settings": identity(self._stream, self.method, self.settings),
            "place": [position.step, position.task, position.epoch, position.batch],
            "network": {name: tensor.detach().clone() for name, tensor in self.network.state_dict().items()},
            "buffer": None if self.buffer is None else self.buffer.state_dict(),
            "method": copied(self.method.state_dict(learner)),  # a method may change its tensors in place
            "tracker": repair.tracker.state_dict(),
            "chosen": None if repair.selection.fixed else repair.selection.chosen,
            "finetuned": learner.finetuned,
            "feed": None if self.loader is None else self.loader.state_dict(),
            "finetuning": repair.state_dict(),
            "upkeep": repair.upkeep_state(),
            "waits": copied(self.pending),
            "finishing": self.finishing,
            "before": measured.before_finetuning,
            "ledger": dict(learner.flops),
            "costs": [[key, flops] for key, flops in learner.costs.items()] if compiled(self.network) else [],
            "engine": self.engine.state_dict(),
            "untrained": measured.untrained,
            "class_il": list(measured.class_il),
            "task_il": list(measured.task_il),
            "losses": [tuple(row) for row in measured.losses],
            "finetunings": [[f.step, f.groups, f.first_loss, f.last_loss, f.kept] for f in measured.finetunings],
            "seconds": self.clock.seconds(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what ``state_dict`` returned."""
        self.position = Position(*state["place"])
        try:
            self.network.load_state_dict(state["network"])
        except RuntimeError as error:
            raise ValueError(f"the state is of another network; resume with that, or start again: {error}") from error
        self.trained = state["before"] is not None
        self.finishing = state["finishing"]
        if self.frozen and (self.position.task > 0 or self.trained or self.finishing):
            self.freeze()
        if self.buffer is not None:
            self.buffer.load_state_dict(state["buffer"])
        self.method.load_state_dict(self.learner, state["method"])
        self.repair.tracker.load_state_dict(state["tracker"])
        if not self.repair.selection.fixed:
            self.repair.selection.chosen = None if state["chosen"] is None else tuple(state["chosen"])
        self.learner.finetuned = state["finetuned"]
        if state["feed"] is not None:
            self.load_task().load_state_dict(state["feed"])
        self.repair.load_state_dict(state["finetuning"])
        self.repair.load_upkeep_state(state["upkeep"])
        if state["waits"] is not None:
            self.pending = {name: rows.to(self.engine.device) for name, rows in state["waits"].items()}
        self.learner.flops = Counter(state["ledger"])
        self.learner.costs.update({to_hashable(key): flops for key, flops in state["costs"]})
        self.measured = Measured(
            untrained=tuple(state["untrained"]),
            before_finetuning=tuple(state["before"]) if self.trained and self.settings.finetune is not None else None,
            class_il=[tuple(row) for row in state["class_il"]],
            task_il=[tuple(row) for row in state["task_il"]],
            losses=[EpochLoss(*row) for row in state["losses"]],
            finetunings=[Repaired(step, tuple(groups), *rest) for step, groups, *rest in state["finetunings"]],
        )
        self.clock.resume(state["seconds"])
        self.engine.load_state_dict(state["engine"])


def identity(stream: Stream, method: Method, settings: TrainSettings) -> dict[str, Any]:
    """Return what must be the same in all parts of a run, as plain data."""
    options = {name: getattr(method, name) for name in settings_of(type(method))}
    plain = {name: value for name, value in options.items() if isinstance(value, bool | int | float | str)}
    chosen = {name: value for name, value in asdict(settings).items() if name not in COMPUTED}
    parts = {"stream": stream.name, "data": stream.checksum, "method": type(method).__name__}
    return {**parts, **plain, **flatten(chosen, {})}


def check_state(state: Mapping[str, Any], stream: Stream, method: Method, settings: TrainSettings) -> None:
    """Raise ``ValueError`` if ``state`` is not the state of a run with these parts."""
    if not isinstance(state, Mapping) or not {"settings", "place", "network"} <= state.keys():
        raise ValueError(f"state is a {type(state).__name__}, not the state of a run; pass what state_dict returned")
    saved = state["settings"]
    trained = state["before"] is not None and state["finetuning"] is None  # the finetuning may differ: see Trained
    for name, value in identity(stream, method, settings).items():
        if saved.get(name, value) == value or (name == "finetune" and trained):
            continue
        if name == "data":
            raise ValueError(f"the data of {stream.name!r} differs from the data that the state was trained on")
        other = f"the state is of a run with {saved[name]!r}"
        raise ValueError(f"{name} is {value!r}, but {other}: resume with that, or start again")


def is_built_in(part: Method | nn.Module) -> bool:
    """Return whether a method or network is part of forgetless. These replay as CUDA graphs with the same results."""
    return type(part).__module__.startswith(("forgetless.methods.", "forgetless.networks."))


def fits(stream: Stream, device: torch.device) -> bool:
    """Return whether all images may be kept on the device: a GPU must have twice the memory free that they take."""
    if device.type != "cuda" or stream.tasks[0].train.x.is_cuda:
        return True
    taken = sum(split.x.nbytes for task in stream.tasks for split in (task.train, task.test))
    return taken < torch.cuda.mem_get_info(device)[0] / 2
