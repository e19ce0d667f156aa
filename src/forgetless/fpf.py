"""FPF and k-FPF for anyone's training loop: track which parameters move, keep a small buffer, repair what forgets.

Zhao et al. (2023), Algorithm 1 (FPF: one finetuning, in ``finish``) and Algorithm 2 (k-FPF: also every τ steps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, final
from warnings import warn

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import find_device
from forgetless.compute.modules import unwrap
from forgetless.compute.precision import has_bf16
from forgetless.repair.buffer import Buffer
from forgetless.repair.checks import Checks
from forgetless.repair.finetune import Finetuned
from forgetless.repair.objective import (
    Augment,
    Forward,
    Inputs,
    Loss,
    Objective,
    Targets,
    call,
    has_labels,
    with_labels,
)
from forgetless.repair.profile import Profile
from forgetless.repair.repairer import Repairer
from forgetless.repair.report import Report
from forgetless.repair.settings import BUDGET, Finetune, Memory, Tracking
from forgetless.repair.state import FORMAT, check_state
from forgetless.repair.tuning import Outcome
from forgetless.repair.upkeep import Upkeep

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

EMPTY = "is empty: call observe() after each training step, before finish()"
UNLABELLED = "holds no example with a label: every y is -100 or NaN"
SLOW_AUTOCAST = (
    "autocast is torch.bfloat16, but this CPU has no instructions for it: finetuning is slower than in float32, and "
    "torch may switch oneDNN off for the whole process. Leave autocast out on this CPU"
)


@final
class FPF:
    """Forgetting Prioritized Finetuning around an existing loop: call ``observe`` after each step, then ``finish``.

        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> fpf = FPF(model, capacity=32, steps=5, groups=["head"])
        >>> fpf.observe(torch.rand(8, 4), torch.tensor([0, 1] * 4))
        >>> fpf.finish().names
        ('2.weight', '2.bias')

    With ``groups="auto"`` nothing is finetuned before a shift of the data was seen, since Eq. 1 compares two tasks. S_g
    is the mean over all shifts. The groups are chosen at the first finetuning that can choose, and kept. Deviations
    from the paper are those of ``forgetless.sensitivity`` and ``forgetless.select``, and windows of steps instead of
    epochs. Parameters that are frozen when the object is made are neither tracked nor finetuned; those frozen later are
    left out while they are frozen. Use one FPF per network: it would count the finetunings of another as training.
    Between finetunings ``observe`` costs one write to the buffer and, every ``window`` steps, one copy of the
    parameters and one GPU-to-CPU sync.

    Args:
        model: Any ``nn.Module``, compiled and wrapped ones included. It returns logits, ``{name: logits}`` for several
            targets, or, with ``loss``, anything.
        capacity: The number of examples the buffer holds.
        every: τ, the training steps between two finetunings (k-FPF). None: only in ``finish()`` (FPF).
        steps: The steps of one finetuning. Default: 300 without ``every``, 100 with it.
        lr: The learning rate of a finetuning, annealed to 0 by a cosine. Default: 0.1 without ``every``, 0.05 with it.
        distill: λ of the term λ · MSE(stored logits, logits). 0: k-FPF-CE, above 0: k-FPF-KD.
        policy: "reservoir" (a uniform sample of all examples), "balanced" (equal shares of the classes in ``y``) or
            "distinct" (repeats count once; equal shares of the classes and of the periods that ``boundary()`` begins).
        batch: The number of examples drawn from the buffer per step of a finetuning.
        groups: "auto" (chosen by sensitivity), "all", or the names of groups.
        threshold: With "auto", choose the groups with S_g above it. Default: 1 without ``every``, 0.3 with it.
        grouping: ``{group: names of tensors}``. Default: ``forgetless.groups(model)``.
        head: The module of the output layer, where ``forgetless.groups`` cannot recognise it.
        window: The steps whose changes are compared. Windows replace the paper's epochs.
        detect: Detect the shifts of the data from the changes of the parameters, until ``boundary()`` announces one.
            After a finetuning, a shift is detected only if three whole windows lie between them. A restart of the
            learning rate looks like a shift.
        augment: Applied to the inputs drawn from the buffer.
        loss: ``(output, y) -> loss``, replaces cross-entropy. "model": the model's own loss, ``output.loss`` or
            ``output["loss"]`` of ``model(**x, labels=y)`` (x is a mapping) or ``model(x, y)`` (x is a tensor).
        forward: ``(model, x) -> output``, replaces ``model(x)`` or, for a mapping, ``model(**x)``. It is called with
            the network inside ``DistributedDataParallel``. With ``loss="model"`` it is ``(model, x, y) -> output``.
        autocast: The dtype of the finetuning's forward pass, such as ``torch.bfloat16``.
        device: Where the buffer is held. Default: with the network's parameters.
        seed: The seed of the buffer, of the draws, and of augmentation and dropout during a finetuning.
        process_group: The processes that train this network together (``DistributedDataParallel``). Default: all of
            them, if ``torch.distributed`` is initialised. ``capacity`` and ``batch`` are totals: each process holds its
            part of the buffer, from the batches it observes, and draws its part of a batch. All processes must call
            ``observe``, ``boundary`` and ``finish`` equally often. They choose the same groups and finetune in step.
            Batch norm sees each process's part alone, and its statistics are averaged afterwards.
    """

    buffer: Buffer
    processes: Processes
    _generator: torch.Generator

    def __init__(
        self,
        model: nn.Module,
        capacity: int = Memory.capacity,
        every: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        distill: float = Finetune.distill,
        *,
        budget: float | None = None,
        policy: str | None = None,
        batch: int = Finetune.batch,
        groups: str | Collection[str] = Finetune.groups,
        threshold: float | None = None,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
        window: int | None = None,
        detect: bool | None = None,
        augment: Augment | None = None,
        loss: Loss | None = None,
        forward: Forward = call,
        autocast: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int = Memory.seed,
        process_group: ProcessGroup | None = None,
    ) -> None:
        schedule: dict[str, Any] = {"every": every, "steps": steps, "lr": lr, "threshold": threshold}
        schedule |= {"window": window, "detect": detect}
        scheduled = {name: value for name, value in schedule.items() if value is not None}
        if scheduled and budget is not None:
            name, value = next(iter(scheduled.items()))
            raise ValueError(f"{name} is {value}, but budget is {budget}: a budget replaces the schedule; give one")
        names = groups if isinstance(groups, str | None) else tuple(groups)
        common: dict[str, Any] = {"distill": distill, "batch": batch, "groups": names}
        tracking = {name: scheduled.pop(name) for name in ("window", "detect") if name in scheduled}
        self.tracking = Tracking(**tracking)
        if scheduled or tracking:
            self.settings = (Finetune if every is None else Finetune.k_fpf)(**scheduled, **common)
        else:
            self.settings = Finetune.within(BUDGET if budget is None else budget, **common)
        self.objective = Objective(augment, loss, forward, autocast)
        self.model = model
        policy = policy or ("reservoir" if self.settings.budget is None else "distinct")
        self._memory = Memory(capacity=capacity, policy=policy, seed=seed)
        self._device = None if device is None else find_device(device)
        self._group = process_group
        self._repairer: Repairer | Upkeep
        if self.settings.budget is None:
            self._repairer = Repairer(
                model, self.settings, self.objective, tracking=self.tracking, grouping=grouping, head=head
            )
        else:
            self._repairer = Upkeep(model, self.settings, self.objective, grouping, head)
        self._checks = Checks(model, self.objective, self.settings, self._repairer.selection.tracked)
        self._warned = False  # of a finetuning that was due and could not happen
        self._join()
        self._repairer.start()
        if autocast == torch.bfloat16 and self._home.type == "cpu" and not has_bf16():
            warn(SLOW_AUTOCAST, stacklevel=2)

    @property
    def step(self) -> int:
        """The number of steps observed."""
        return self._repairer.step

    @property
    def finetunings(self) -> int:
        """The number of finetunings."""
        return self._repairer.finetunings

    @property
    def shifts(self) -> list[int]:
        """The steps after which the data shifted, as announced by ``boundary()`` or detected."""
        return self._repairer.shifts

    def settle(self) -> None:
        """Before the first step, follow a network that was moved or loaded since, and join processes that have met."""
        if self.step:
            return
        moved = self._device is None and self._home != self.buffer.device
        count = Processes(self._group).count
        if moved or count != self.processes.count:
            held = self.buffer.state_dict()
            self._join()
            if held["seen"]:  # taken over from another FPF
                self.buffer.load_state_dict(held | {"generator": None})
        self._repairer.start()

    def observe(self, x: Inputs, y: Targets, logits: Tensor | None = None) -> Finetuned | Outcome | None:
        """Track the network, finetune if it is due, then offer the batch to the buffer.

        Call it once after each ``optimizer.step()``. The first call also tries forward and loss on the batch.

        Args:
            x: The inputs before augmentation; a mapping for a network with keyword arguments.
            y: The labels; a mapping ``{name: tensor}`` for several targets. Examples whose labels are all -100 (floats:
                NaN) have none and are left out of finetunings.
            logits: The network's output in this step's forward pass; ``distill`` needs it.

        Returns:
            What the finetuning did, if there was one.
        """
        self.settle()
        rows = self._checks.rows(x, y, logits, self.buffer)
        self._checks.check_alone()
        try:
            if not self._repairer.advance(len(next(iter(rows.values())))):
                return None
            return self._repair()
        finally:
            self.buffer.offer(rows)  # also if the repair fails: the training step was made

    def remember(self, x: Inputs, y: Targets, logits: Tensor | None = None) -> None:
        """Offer examples to the buffer outside of training. With "distinct" they have shares of their own."""
        self.settle()
        self.buffer.offer(self._checks.rows(x, y, logits, self.buffer), remembered=True)

    def boundary(self) -> None:
        """Announce that the data shifts here: the next batch belongs to a new task. Shifts are no longer detected.

        Before the first step there is nothing to shift from, and the call has no effect.
        """
        if self.step:
            self._repairer.boundary()
            self.buffer.period += 1

    def finish(self) -> Report | Finetuned | None:
        """Repair once more, at the end of the stream. Training may continue afterwards, and finish again.

        Returns:
            A report of what the repair did and cost. On the paper's schedule, what the finetuning did, or None, with a
            warning, if no group was chosen.
        """
        if lack := self._lack():
            raise ValueError(lack)
        buffer = with_labels(self.buffer)
        if isinstance(self._repairer, Upkeep):
            done: Report | Finetuned | None = self._repairer.finish(buffer, self._generator, self.processes)
        else:
            self._repairer.mark_short_task()
            done = self._repairer.finetune(buffer, self._generator, self.processes)
            if done is None:
                warn(f"nothing was finetuned in {self.step} steps: {self._repairer.why_not()}", stacklevel=2)
        self.buffer.period += 1
        return done

    def sensitivities(self) -> dict[str, float]:
        """Return S_g of each group, averaged over all shifts so far; empty before the first, and with a budget."""
        if isinstance(self._repairer, Upkeep):
            return {}
        return self._repairer.selection.scores(self._repairer.tracker.task_changes())

    def profile(self) -> Profile:
        """Return which groups forget and which are repaired; it prints as a table.

        On the paper's schedule, changes by finetunings between two shifts are included.
        """
        return self._repairer.profile()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that ``observe`` and ``finish`` depend on besides the network, as tensors and plain data.

        Each of several processes has its own state.
        """
        return {
            "format": FORMAT,
            "processes": [self.processes.rank, self.processes.count],
            "generator": self._generator.get_state(),
            "buffer": self.buffer.state_dict(),
            self._kind: self._repairer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; load the network separately. Warns if the finetuning has other settings now."""
        self.settle()
        check_state(state, self._kind, self.processes, self.settings.distill)
        present = self.buffer
        buffer = Buffer(present.capacity, policy=present.policy, device=present.device, seed=present.seed)
        buffer.load_state_dict(state["buffer"])
        self._repairer.load_state_dict(state[self._kind])
        self.buffer = buffer  # only now, so that a state that does not fit changes nothing
        self._checks.tried = False
        self._generator.set_state(state["generator"].cpu())

    @property
    def _kind(self) -> str:
        return "schedule" if self.settings.budget is None else "upkeep"

    @property
    def _home(self) -> torch.device:
        return next(unwrap(self.model).parameters()).device

    def _join(self) -> None:
        """Take this process's part of the buffer and of the batches."""
        self.processes = Processes(self._group)
        if isinstance(self._repairer, Repairer):
            self._repairer.tracker.agree = self.processes.mean
        self.processes.share(self.settings.batch, "batch")  # raises an error if there are more processes
        device = self._device or self._home
        seed = self._memory.seed + 1_000_003 * self.processes.rank
        capacity = self.processes.share(self._memory.capacity, "capacity")
        self.buffer = Buffer(capacity, policy=self._memory.policy, device=device, seed=seed)
        self._generator = torch.Generator(device).manual_seed(seed + 1)

    def _repair(self) -> Finetuned | Outcome | None:
        """Repair during training, or warn once that there is nothing to repair or to repair it with."""
        done: Finetuned | Outcome | None = None
        if not (lack := self._lack()):
            buffer = with_labels(self.buffer)
            if isinstance(self._repairer, Repairer):
                done = self._repairer.finetune(buffer, self._generator, self.processes)
                lack = self._repairer.why_not() if done is None else ""
            elif all(self.processes.gather(self._repairer.ready(buffer))):
                done = self._repairer.repair_shortly(buffer, self._generator, self.processes)
        if lack and not self._warned and self.step > 1:
            self._warned = True
            warn(f"a finetuning was due at step {self.step}, but nothing was finetuned: {lack}", stacklevel=3)
        return done

    def _lack(self) -> str:
        """Return which buffers have no example with a label, in words; "" if all have. Else no process finetunes."""
        own = "" if has_labels(self.buffer) else UNLABELLED if len(self.buffer) else EMPTY
        lacking = {rank: text for rank, text in enumerate(self.processes.gather(own)) if text}
        where = f" of process {', '.join(map(str, lacking))}" if self.processes.count > 1 else ""
        return f"the buffer{where} {next(iter(lacking.values()))}" if lacking else ""
