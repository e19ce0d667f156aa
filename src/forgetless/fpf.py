"""FPF and k-FPF for anyone's training loop: track which parameters move, keep a small buffer, repair what forgets.

Zhao et al. (2023), Algorithm 1 (FPF: one finetuning, in ``finish``) and Algorithm 2 (k-FPF: also every τ steps).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final
from warnings import warn

import torch
from torch import Tensor, nn

from forgetless.compute.distributed import Processes
from forgetless.compute.engine import find_device
from forgetless.compute.modules import unwrap
from forgetless.compute.precision import has_bf16
from forgetless.repair.buffer import Buffer
from forgetless.repair.finetune import Finetuned
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, check_arguments, check_labels, pack
from forgetless.repair.profile import Profile
from forgetless.repair.repairer import Repairer
from forgetless.repair.settings import Finetune, Memory, Tracking

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

FORMAT = 1  # of the state
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
        model: Any ``nn.Module`` that returns logits, compiled and wrapped ones included.
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
        loss: ``(logits, y) -> loss``, replaces cross-entropy.
        forward: ``(model, x) -> logits``, replaces ``model(x)`` or, for a mapping, ``model(**x)``. It is called with
            the network inside ``DistributedDataParallel``.
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
        every: int | None = Finetune.every,
        steps: int | None = None,
        lr: float | None = None,
        distill: float = Finetune.distill,
        *,
        policy: str = Memory.policy,
        batch: int = Finetune.batch,
        groups: str | Collection[str] = Finetune.groups,
        threshold: float | None = None,
        grouping: Mapping[str, Collection[str]] | None = None,
        head: str | None = None,
        window: int = Tracking.window,
        detect: bool = Tracking.detect,
        augment: Augment | None = None,
        loss: Loss | None = None,
        forward: Forward = call,
        autocast: torch.dtype | None = None,
        device: torch.device | str | None = None,
        seed: int = Memory.seed,
        process_group: ProcessGroup | None = None,
    ) -> None:
        defaults = Finetune() if every is None else Finetune.k_fpf(every)
        given: dict[str, Any] = {"steps": steps, "lr": lr, "threshold": threshold}
        given = {name: value for name, value in given.items() if value is not None}
        names = groups if isinstance(groups, str | None) else tuple(groups)
        self.settings = replace(defaults, distill=distill, batch=batch, groups=names, **given)
        self.objective = Objective(augment, loss, forward, autocast)
        self.model = model
        self._memory = Memory(capacity=capacity, policy=policy, seed=seed)
        self._device = None if device is None else find_device(device)
        self._group = process_group
        self.tracking = Tracking(window=window, detect=detect)
        self._repairer = Repairer(
            model, self.settings, self.objective, tracking=self.tracking, grouping=grouping, head=head
        )
        self._selection, self._tracker = self._repairer.selection, self._repairer.tracker
        self._join()
        self._tracker.start()
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
        self._tracker.start()

    def observe(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None = None) -> Finetuned | None:
        """Track the network, finetune if it is due, then offer the batch to the buffer.

        Call it once after each ``optimizer.step()``.

        Args:
            x: The inputs before augmentation; a mapping for a network with keyword arguments.
            y: The labels.
            logits: The network's output in this step's forward pass; ``distill`` needs it.

        Returns:
            What the finetuning did, if there was one.
        """
        self.settle()
        rows = self._rows(x, y, logits)
        try:
            if self._repairer.advance() and not self._empty():
                return self._repairer.finetune(self.buffer, self._generator, self.processes)
            return None
        finally:
            self.buffer.offer(rows)  # also if the finetuning fails: the training step was made

    def remember(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None = None) -> None:
        """Offer examples to the buffer outside of training. With "distinct" they have shares of their own."""
        self.settle()
        self.buffer.offer(self._rows(x, y, logits), remembered=True)

    def boundary(self) -> None:
        """Announce that the data shifts here: the next batch belongs to a new task. Shifts are no longer detected."""
        self._repairer.boundary()
        self.buffer.period += 1

    def finish(self) -> Finetuned | None:
        """Finetune once more, at the end of the stream. Training may continue afterwards, and finish again.

        Returns:
            What the finetuning did, or None, with a warning, if no group was chosen.
        """
        if empty := self._empty():
            where = f" of process {', '.join(map(str, empty))}" if self.processes.count > 1 else ""
            raise ValueError(f"the buffer{where} is empty: call observe() after each training step, before finish()")
        self._repairer.mark_short_task()
        done = self._repairer.finetune(self.buffer, self._generator, self.processes)
        self.buffer.period += 1
        if done is None:
            why = self._selection.why_not(self._tracker.task_changes())
            warn(f"nothing was finetuned in {self.step} steps: {why}", stacklevel=2)
        return done

    def sensitivities(self) -> dict[str, float]:
        """Return S_g of each group, averaged over all shifts so far; empty before the first."""
        return self._selection.scores(self._tracker.task_changes())

    def profile(self) -> Profile:
        """Return which groups move when the data shifts and which are finetuned; it prints as a table.

        Changes by finetunings between two shifts are included.
        """
        return self._selection.profile(self._tracker.task_changes(), len(self._tracker.between_tasks))

    def state_dict(self) -> dict[str, Any]:
        """Return everything that ``observe`` and ``finish`` depend on besides the network, as tensors and plain data.

        Each of several processes has its own state.
        """
        return {
            "format": FORMAT,
            "processes": [self.processes.rank, self.processes.count],
            "generator": self._generator.get_state(),
            "buffer": self.buffer.state_dict(),
            **self._repairer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; load the network separately. Warns if the finetuning has other settings now."""
        if state.get("format") != FORMAT:
            raise ValueError(f"the state has format {state.get('format')!r}; this version of forgetless reads {FORMAT}")
        self.settle()
        rank, count = state["processes"]
        if (rank, count) != (self.processes.rank, self.processes.count):
            raise ValueError(
                f"the state is of process {rank} of {count}; this is process {self.processes.rank} of "
                f"{self.processes.count}, which needs its own state"
            )
        columns, distill = state["buffer"]["columns"], self.settings.distill
        if columns and ("logits" in columns) != bool(distill):
            holds = "holds" if "logits" in columns else "does not hold"
            raise ValueError(f"distill is {distill}, but the buffer of the state {holds} logits")
        present = self.buffer
        buffer = Buffer(present.capacity, policy=present.policy, device=present.device, seed=present.seed)
        buffer.load_state_dict(state["buffer"])
        self._repairer.load_state_dict(state)
        self.buffer = buffer  # only now, so that a state that does not fit changes nothing
        self._generator.set_state(state["generator"].cpu())

    @property
    def _home(self) -> torch.device:
        return next(unwrap(self.model).parameters()).device

    def _join(self) -> None:
        """Take this process's part of the buffer and of the batches."""
        self.processes = Processes(self._group)
        self._tracker.agree = self.processes.mean
        self.processes.share(self.settings.batch, "batch")  # raises an error if there are more processes
        device = self._device or self._home
        seed = self._memory.seed + 1_000_003 * self.processes.rank
        capacity = self.processes.share(self._memory.capacity, "capacity")
        self.buffer = Buffer(capacity, policy=self._memory.policy, device=device, seed=seed)
        self._generator = torch.Generator(device).manual_seed(seed + 1)

    def _empty(self) -> list[int]:
        """Return the processes whose buffer is empty: if there is one, none of them finetunes."""
        return [rank for rank, held in enumerate(self.processes.gather(len(self.buffer))) if not held]

    def _rows(self, x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None) -> dict[str, Tensor]:
        """Return the batch as columns of the buffer, checked before anything is changed."""
        rows = pack(x, y, logits, self.settings.distill)
        if isinstance(x, Mapping) and self.objective.forward is call and not self.step:
            check_arguments(self.model, x)
        self.buffer.check(rows)
        if logits is not None and self.objective.loss is None:
            # On a GPU the values are checked at the next finetuning: here it would be a GPU-to-CPU sync.
            check_labels(y, logits, values=y.device.type == "cpu")
        return rows
