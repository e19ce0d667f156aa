"""FPF and k-FPF for anyone's training loop: watch which parameters move, keep a small buffer, repair what forgets.

    fpf = FPF(model, capacity=500, every=1500)
    for x, y in stream:
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        fpf.observe(x, y, logits)
    fpf.finish()

Zhao et al. (2023), Algorithm 1 (FPF: one finetuning, in ``finish``) and Algorithm 2 (k-FPF: also after every τ steps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any
from warnings import warn

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import find_device
from forgetless.compute.modules import unwrap
from forgetless.config.fields import SEED, check_value
from forgetless.repair import finetune as finetuning
from forgetless.repair.buffer import Buffer, restore_generator
from forgetless.repair.finetune import Augment, Finetuned, Forward, Loss
from forgetless.repair.profile import Profile
from forgetless.repair.selection import STILL, Selection
from forgetless.repair.settings import Finetune
from forgetless.repair.tracker import Detector, Row, Tracker

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

FORMAT = 1  # of the state


class FPF:
    """Forgetting Prioritized Finetuning around an existing loop: ``observe`` each step, then ``finish``.

    Args:
        model: any ``nn.Module`` that gives logits; compiled or wrapped ones too
        capacity: examples the buffer holds
        policy: which: "reservoir", a uniform sample of all that is observed; "balanced", equal shares of the classes
            in ``y``, so that rare ones are among them
        every: τ, the training steps between two finetunings (k-FPF); None: only in ``finish()`` (FPF)
        steps: steps of one finetuning; default 300 without ``every``, 100 with it
        lr: learning rate of the finetuning, annealed to 0 by a cosine
        distill: λ of the term λ · MSE(stored logits, logits); 0: cross-entropy alone (k-FPF-CE), above 0: k-FPF-KD
        batch: examples drawn from the buffer for a step of finetuning
        groups: "auto": chosen by sensitivity; "all"; or names of groups
        threshold: with "auto": groups with S_g above it; default 1 without ``every``, 0.3 with it
        grouping: {group: names of tensors}, in place of ``forgetless.groups(model)``
        head: the module of the output layer, where ``forgetless.groups`` cannot recognise it
        window: steps whose changes are compared; they take the place of the paper's epochs
        detect: find the shifts of the data from the changes of the parameters, until ``boundary()`` tells one. Once
            finetuning has begun, a shift is found only where three whole windows lie between it and the
            finetuning before it; a restart of the learning rate looks like a shift
        augment: applied to the inputs drawn from the buffer
        loss: (logits, y) -> loss, in place of cross-entropy
        forward: (model, x) -> logits, where ``model(x)``, or ``model(**x)`` for a mapping, does not give them;
            ``model`` is then what is inside ``DistributedDataParallel``
        autocast: dtype of the finetuning's forward pass, say torch.bfloat16
        device: where the buffer is kept; default: with the network's parameters
        seed: of the buffer, the draws, and of augmentation and dropout while finetuning
        process_group: the processes that train this network together (``DistributedDataParallel``); default: all of
            them, where ``torch.distributed`` is initialised. ``capacity`` and ``batch`` are those of all together:
            each process keeps its part of the buffer, from the batches it observes, and draws its part of a batch.
            All call ``observe``, ``boundary`` and ``finish`` equally often, choose the same groups, and finetune
            in step; batch norm sees each process's part alone, and its statistics are averaged afterwards

    With "auto" nothing is finetuned before a shift of the data has been seen, since Eq. 1 compares two tasks. S_g is
    the mean over the shifts seen; the groups are chosen at the first finetuning that can, and kept. Deviations from
    the paper are those of ``dynamics.sensitivity`` and ``dynamics.select``. Parameters that are frozen when the
    object is made are neither tracked nor finetuned, nor are statistics of batch norm that never moved; those frozen
    later are left out as long as they are. A network has one FPF: the finetunings of another would count as its
    training. Between finetunings ``observe`` costs the write of one batch to the buffer, and every ``window`` steps one
    copy of the parameters and one read by the host.
    """

    def __init__(
        self,
        model: nn.Module,
        capacity: int = 500,
        every: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        distill: float = 0.0,
        *,
        policy: str = "reservoir",
        batch: int = 32,
        groups: str | Collection[str] = "auto",
        threshold: float | None = None,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
        window: int = 20,
        detect: bool = True,
        augment: Augment | None = None,
        loss: Loss | None = None,
        forward: Forward = finetuning.call,
        autocast: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        process_group: ProcessGroup | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(f"model is a {type(model).__name__}; it must be an nn.Module")
        finetuning.check_functions(augment=augment, loss=loss, forward=forward)
        check_value("seed", seed, int, **SEED)
        self.model = model
        self.augment, self.loss, self.forward = augment, loss, forward
        finetuning.check_autocast(autocast)
        defaults = Finetune() if every is None else Finetune.k_fpf()
        settings = Finetune(
            every=every,
            steps=defaults.steps if steps is None else steps,
            lr=defaults.lr if lr is None else lr,
            distill=distill,
            threshold=defaults.threshold if threshold is None else threshold,
            batch=batch,
        )
        check_value("capacity", capacity, int, least=1)
        check_value("window", window, int, least=1)
        self.every, self.steps, self.batch, self.window = settings.every, settings.steps, settings.batch, int(window)
        self.lr, self.distill, self.autocast = settings.lr, settings.distill, autocast

        network = unwrap(model)
        self._selection = Selection(network, groups, settings.threshold, grouping, head)
        self._where = None if device is None else find_device(device)
        self._capacity, self._policy, self._seed, self._group = int(capacity), policy, int(seed), process_group
        self._join()
        self._tracker = Tracker(network, self._selection.tracked, agree=self._mean)
        self._detect, self._detector = bool(detect), Detector() if detect else None
        self.step = 0
        self.finetunings = 0
        self.shifts: list[int] = []  # the steps after which the data shifted, as told or found
        self._steps_of_window = 0
        self._resting: set[str] = set()  # statistics of layers in evaluation mode while the network trains
        self._tracker.start()

    def _mean(self, changes: Tensor) -> Tensor:
        return self.processes.mean(changes)

    def _join(self) -> None:
        """Take this process's part of the buffer and of the batches."""
        self.processes = Processes(self._group)
        where = self._where or next(unwrap(self.model).parameters()).device
        seed = self._seed + 1_000_003 * self.processes.rank
        capacity = self.processes.share(self._capacity, "capacity")
        self.buffer = Buffer(capacity, policy=self._policy, device=where, seed=seed)
        self._generator = torch.Generator(where).manual_seed(seed + 1)
        self._share = self.processes.share(self.batch, "batch")

    def settle(self) -> None:
        """Before the first step: follow a network that was moved or loaded since, and join processes that met.

        ``observe`` does it too, but after the first update.
        """
        if self.step:
            return
        moved = self._where is None and next(unwrap(self.model).parameters()).device != self.buffer.device
        count = Processes(self._group).count
        if moved or count != self.processes.count:
            held = self.buffer.state_dict()
            if held["seen"] and count != self.processes.count:
                raise ValueError(
                    f"the buffer was given {len(self.buffer)} examples before {count} processes met: make this FPF "
                    "after that, and give each process its part"
                )
            self._join()
            if held["seen"]:  # taken over from another FPF
                self.buffer.load_state_dict(held | {"generator": None})
        self._tracker.start()  # weights may have been loaded; processes take over those of one of them when they meet

    def observe(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None = None) -> Finetuned | None:
        """Once after each ``optimizer.step()``: track, finetune if it is time, then let the buffer take the batch.

        ``x`` as it is before augmentation, ``y`` its labels, ``logits`` the network's output of this step's forward
        pass (needed with ``distill``). Gives what the finetuning did, if there was one.
        """
        self.settle()
        rows = self._rows(x, y, logits)
        self.step += 1
        self._steps_of_window += 1
        if unwrap(self.model).training and (self.step == 1 or self._steps_of_window >= self.window):
            self._resting = finetuning.resting(unwrap(self.model))
        try:
            if self._steps_of_window >= self.window:
                self._mark()
            due = self.every is not None and self.step % self.every == 0 and not self._empty()
            return self._finetune() if due else None
        finally:
            self.buffer.add(rows)  # also when the finetuning fails: the step has been made

    def boundary(self) -> None:
        """Tell that the data shifts here: what is observed next is a new task. From now on no shift is searched for."""
        self._detector = None
        self._mark_short_task()
        if self._tracker.epoch:  # else nothing was observed since the last one
            self.shifts.append(self.step)
            self._tracker.boundary()
            self._tracker.start()
            self._steps_of_window = 0

    def finish(self) -> Finetuned | None:
        """At the end of the stream: finetune once more. Training may go on afterwards, and finish again."""
        if empty := self._empty():
            of = f" of process {', '.join(map(str, empty))}" if self.processes.count > 1 else ""
            raise ValueError(f"the buffer{of} is empty: call observe() after each training step, before finish()")
        self._mark_short_task()
        done = self._finetune()
        if done is None:
            why = self._selection.why_not(self._tracker.task_changes())
            advice = "Call boundary() where the data shifts, make the window"
            advice += " smaller (a task must have four), lower the threshold, or name the groups; to repair the "
            advice += "network as it is, forgetless.finetune(model, fpf.buffer, names of tensors)"
            if why == STILL:
                advice = "Is this FPF around the network that the optimiser trains?"
            warn(f"nothing was finetuned in {self.step} steps: {why}. {advice}", stacklevel=2)
        return done

    def sensitivities(self) -> dict[str, float]:
        """S_g of each group, from all shifts of the data seen so far; empty before the first."""
        return self._selection.scores(self._tracker.task_changes())

    def profile(self) -> Profile:
        """Which groups move when the data shifts, and which are finetuned; prints as a table.

        What finetunings between two shifts have moved is part of it.
        """
        return self._selection.profile(self._tracker.task_changes(), len(self._tracker.between_tasks))

    def state_dict(self) -> dict[str, Any]:
        """All that ``observe`` and ``finish`` depend on beside the network, as tensors and plain data.

        Of several processes each has a state of its own.
        """
        return {
            "format": FORMAT,
            "processes": [self.processes.rank, self.processes.count],
            "groups": {group: list(names) for group, names in self._selection.grouping.items()},
            "chosen": None if self._selection.chosen is None else list(self._selection.chosen),
            "step": self.step,
            "finetunings": self.finetunings,
            "shifts": list(self.shifts),
            "window": self.window,
            "settings": self._settings(),
            "steps_of_window": self._steps_of_window,
            "resting": sorted(self._resting),
            "generator": self._generator.get_state(),
            "buffer": self.buffer.state_dict(),
            "tracker": self._tracker.state_dict(),
            "detector": None if self._detector is None else self._detector.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state``; the network is loaded on its own. A finetuning with other settings is warned of."""
        found = state.get("format") if isinstance(state, Mapping) else None
        if found != FORMAT:
            raise ValueError(f"the state has format {found!r}; this version of forgetless reads {FORMAT}")
        missing = self.state_dict().keys() - state.keys() - {"processes", "window", "settings", "resting"}
        if missing:
            raise ValueError(f"the state lacks {', '.join(sorted(missing))}")
        if {group: tuple(names) for group, names in state["groups"].items()} != self._selection.grouping:
            raise ValueError("the state was saved from a network with other groups of parameters")
        self.settle()
        rank, count = state.get("processes", (0, 1))  # states of before there were several
        if (rank, count) != (self.processes.rank, self.processes.count):
            raise ValueError(
                f"the state is of process {rank} of {count}; this is process {self.processes.rank} of "
                f"{self.processes.count}, and needs a state of its own"
            )
        if (window := state.get("window", self.window)) != self.window:
            raise ValueError(f"the state was saved with window {window}; this has {self.window}")
        held = set(state["buffer"].get("columns", {}))
        if held and ("logits" in held) != bool(self.distill):
            kept = "holds" if "logits" in held else "does not hold"
            raise ValueError(
                f"distill is {self.distill}, but the buffer of the state {kept} logits: it was saved with another"
            )
        own = self.buffer
        buffer = Buffer(own.capacity, policy=own.policy, device=own.device, seed=own.seed)
        buffer.load_state_dict(state["buffer"])
        self._tracker.load_state_dict(state["tracker"])
        self.buffer = buffer  # only now, so that a state which does not fit changes nothing
        restore_generator(self._generator, state["generator"])
        told = state["detector"] is None and state.get("settings", {}).get("detect", True)  # by ``boundary``
        self._detector = Detector() if self._detect and not told else None
        if self._detector is not None and state["detector"] is not None:
            self._detector.load_state_dict(state["detector"])
        if not self._selection.fixed:  # groups that were named there were not chosen
            chosen = state["chosen"] if state.get("settings", {}).get("groups", "auto") == "auto" else None
            self._selection.chosen = None if chosen is None else tuple(chosen)
        self.step, self.finetunings, self.shifts = state["step"], state["finetunings"], list(state["shifts"])
        self._steps_of_window = state["steps_of_window"]
        self._resting = set(state.get("resting", ()))
        now = self._settings()
        changed = {name: value for name, value in state.get("settings", now).items() if value != now[name]}
        if changed:
            saved = ", ".join(f"{name} {value}" for name, value in changed.items())
            here = ", ".join(f"{name} {now[name]}" for name in changed)
            warn(f"the state was saved with {saved}; this FPF has {here}, and goes on with that", stacklevel=2)

    def _settings(self) -> dict[str, Any]:
        """How it finetunes, and when."""
        names = ("every", "steps", "lr", "distill", "batch")
        groups = list(self._selection.chosen or ()) if self._selection.fixed else "auto"
        return {name: getattr(self, name) for name in names} | {
            "threshold": self._selection.threshold,
            "groups": groups,
            "detect": self._detect,
            "autocast": None if self.autocast is None else str(self.autocast),
        }

    def _rows(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """The batch as columns of the buffer, checked before anything is changed."""
        rows = finetuning.pack(x, y)
        if isinstance(x, Mapping) and self.forward is finetuning.call and not self.step:
            finetuning.check_arguments(self.model, x)
        if self.distill:
            if logits is None:
                raise ValueError(f"distill is {self.distill}, which needs logits: call observe(x, y, logits)")
            rows["logits"] = logits
        if not isinstance(logits, Tensor | None):
            raise TypeError(f"logits is a {type(logits).__name__}; give the tensor in it, say output.logits")
        self.buffer.check(rows)
        if logits is not None and self.loss is None:
            # Whether they are in range is elsewhere left to the next finetuning: the host would wait.
            check = finetuning.check_labels if y.device.type == "cpu" else finetuning.check_label_shape
            check(y, logits)
        return rows

    def _empty(self) -> list[int]:
        """The processes whose buffer is empty: if there is one, none of them finetunes."""
        return [rank for rank, held in enumerate(self.processes.gather(len(self.buffer))) if not held]

    def _mark(self) -> None:
        self._steps_of_window = 0
        self._tracker.mark(None if self._detector is None else self._begins_task)

    def _mark_short_task(self) -> None:
        """A task shorter than a window is compared by what it has."""
        if self._tracker.epoch == 0 and self._steps_of_window:
            self._mark()

    def _begins_task(self, row: Row) -> bool:
        assert self._detector is not None
        by_tensor = dict(zip(self._tracker.names, row.changes.tolist(), strict=True))
        begins = self._detector.see(self._selection.of_weights(by_tensor))
        if begins:
            self.shifts.append(self.step - self.window)
        return begins

    def _finetune(self) -> Finetuned | None:
        chosen = self._selection.choice(self._tracker.task_changes())
        names = self._selection.names(self._selection.movable(chosen))
        if not unwrap(self.model).training:  # to be tested, say: modes tell nothing now
            names = [name for name in names if name not in self._resting]
        if not names:
            return None
        done = finetuning.finetune(
            self.model,
            self.buffer,
            names,
            self.steps,
            self.lr,
            self.distill,
            batch=self._share,
            augment=self.augment,
            loss=self.loss,
            forward=self.forward,
            autocast=self.autocast,
            generator=self._generator,
            processes=self.processes,
        )
        self._selection.chosen = chosen  # also what is frozen for the time being
        self.finetunings += 1
        self._tracker.start()  # what finetuning moved is no change of training, and training now moves it back:
        if self._detector is not None:  # that is no shift of the data
            self._detector.restart()
        return done
