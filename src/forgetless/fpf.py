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
from forgetless.compute.modules import padding_token, unwrap
from forgetless.compute.precision import has_bf16
from forgetless.compute.shards import check_processes, compute_device
from forgetless.memory.batch import Inputs, Targets, size_of
from forgetless.memory.buffer import Buffer
from forgetless.memory.labels import has_labels, with_labels
from forgetless.memory.settings import Memory
from forgetless.repair.bench import Outcome
from forgetless.repair.checks import Checks
from forgetless.repair.finetuning import Finetuned
from forgetless.repair.objective import Augment, Forward, Loss, Objective, call, shifts_labels
from forgetless.repair.profile import Profile
from forgetless.repair.repairer import Repairer
from forgetless.repair.report import Report
from forgetless.repair.settings import BUDGET, LANGUAGE_BATCH, LANGUAGE_BUDGET, Finetune, Tracking
from forgetless.repair.state import FORMAT, check_state
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
    """Repair a network while it is trained in your own loop: call ``observe`` after each step, then ``finish``.

        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> fpf = FPF(model, capacity=32)
        >>> fpf.observe(torch.rand(32, 4), torch.tensor([0, 1] * 16))
        >>> report = fpf.finish()
        >>> report.loss_after <= report.loss_before
        True

    By default repairs stay within a ``budget``: they finetune on seven eighths of the buffer, and the held-out eighth
    judges the result. During training they are short, and about one in ten is measured: if it raised the loss, it is
    undone. ``finish`` searches the optimizer and the learning rate, repairs until the held-out loss stops falling, and
    keeps to the groups that forget if that is as good as repairing all. It changes nothing if the loss did not fall by
    more than noise. ``finish`` alone repairs a causal language model: it brings back its own earlier predictions.

    With ``every``, ``steps``, ``lr``, ``threshold``, ``window`` or ``detect``, repairs follow the schedule of Zhao et
    al. (2023) instead. With ``groups="auto"`` nothing is then finetuned before a shift of the data was seen, since Eq.
    1 compares two tasks. The groups are chosen at the first finetuning that can choose, and kept. Windows of steps
    replace the paper's epochs.

    Parameters that are frozen when the object is made are not finetuned; those frozen later are left out while they are
    frozen. Use one FPF per network: it would count the finetunings of another as training.

    Args:
        model: Any ``nn.Module``, compiled and wrapped ones included. It returns logits, ``{name: logits}`` for several
            targets, or, with ``loss``, anything.
        capacity: The number of examples the buffer holds.
        every: τ, the training steps between two finetunings (k-FPF). None: only in ``finish()`` (FPF).
        steps: The steps of one scheduled finetuning. Default: 300 without ``every``, 100 with it.
        lr: Its learning rate, annealed to 0 by a cosine. Default: 0.1 without ``every``, 0.05 with it.
        distill: λ of the term λ · MSE(stored logits, logits). 0: k-FPF-CE, above 0: k-FPF-KD.
        budget: The examples that repairs may use per training example, up to 10. Default: 0.8 (language models: 0.05).
        policy: "reservoir" (a uniform sample of all examples), "balanced" (equal shares of the classes in ``y``) or
            "distinct" (repeats count once; equal shares of the classes and of the periods that ``boundary()`` begins).
            Default: "distinct", on a schedule "reservoir".
        batch: Examples drawn from the buffer per step, with at most 16,384 tokens. Default: 32 (language models: 8).
        groups: "auto" (those that forget), "all", or the names of groups.
        threshold: With "auto" on a schedule, choose the groups with S_g above it. Default: 1, with ``every`` 0.3.
        grouping: ``{group: names of tensors}``. Default: ``forgetless.groups(model)``.
        head: The module of the output layer, where ``forgetless.groups`` cannot recognise it.
        window: The steps whose changes are compared. Default: 20.
        detect: Detect shifts of the data from changes of the parameters (default on a schedule), until ``boundary()``
            announces one. After a finetuning three windows must pass. A restart of the rate looks like a shift.
        augment: Applied to the inputs drawn from the buffer.
        loss: ``(output, y) -> loss``, replaces cross-entropy. "model": the model's own loss, ``output.loss`` or
            ``output["loss"]`` of ``model(**x, labels=y)`` (x is a mapping) or ``model(x, y)`` (x is a tensor). This is
            the default for a causal language model that takes ``labels``, as those of Hugging Face do.
        forward: ``(model, x) -> output``, replaces ``model(x)`` or, for a mapping, ``model(**x)``. It is called with
            the network inside ``DistributedDataParallel``. With ``loss="model"`` it is ``(model, x, y) -> output``.
        autocast: The dtype of the finetuning's forward pass, such as ``torch.bfloat16``.
        device: Where the buffer and, on a schedule, the weights of earlier windows are held. Default: with the network.
        seed: The seed of the buffer, of the draws, and of augmentation and dropout during a finetuning.
        process_group: The processes that train this network together (``DistributedDataParallel``, ``fully_shard``).
            Default: all of them, if ``torch.distributed`` is initialised. ``capacity`` and ``batch`` are totals: each
            process holds its part of the buffer, from the batches it observes, and draws its part of a batch. All
            processes must call ``observe``, ``boundary`` and ``finish`` equally often. They choose the same groups and
            finetune in step. Batch norm sees each process's part alone, and its statistics are averaged afterwards.
    """

    buffer: Buffer
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
        batch: int | None = None,
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
        schedule = {"every": every, "steps": steps, "lr": lr, "threshold": threshold}
        tracking = {"window": window, "detect": detect}
        names = groups if isinstance(groups, str | None) else tuple(groups)
        self.objective = Objective(augment, loss, forward, autocast, shifts=shifts_labels(model))
        common = {"distill": distill, "groups": names} | ({} if batch is None else {"batch": batch})
        self.settings, self.tracking = _resolve(schedule, tracking, budget, common, language=self.objective.shifts)
        self.model = model
        self._kind = "schedule" if self.settings.budget is None else "upkeep"
        policy = policy or ("reservoir" if self._kind == "schedule" else "distinct")
        self._memory = Memory(capacity=capacity, policy=policy, seed=seed)
        self._device = None if device is None else find_device(device)
        self._group = process_group
        self._repairer: Repairer | Upkeep
        given = (model, self.settings, self.objective, grouping, head)
        host = self._device is not None and self._device.type == "cpu"
        self._repairer = Upkeep(*given) if self.settings.budget else Repairer(*given, tracking=self.tracking, host=host)
        self._checks = Checks(model, self.objective, self.settings, self._repairer.selection.tracked)
        self._warned = False  # of a finetuning that was due and could not happen
        self._join()
        self._repairer.start()
        if autocast == torch.bfloat16 and _home(model).type == "cpu" and not has_bf16():
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

    def settle(self, *, start: bool = True) -> None:
        """Before the first step, follow a network that was moved or loaded since, and join processes that have met."""
        if self._repairer.step:
            return
        check_processes(unwrap(self.model), Processes(self._group))
        moved = self._device is None and _home(self.model) != self.buffer.device
        count = Processes(self._group).count
        if moved or count != self.processes.count:
            held = self.buffer.state_dict()
            self._join()
            if held["seen"]:  # taken over from another FPF
                self.buffer.load_state_dict(held | {"generator": None})
        if start:
            self._repairer.start()

    def observe(self, x: Inputs, y: Targets | None = None, logits: Tensor | None = None) -> Finetuned | Outcome | None:
        """Track the network, finetune if it is due, then offer the batch to the buffer.

        Call it once after each ``optimizer.step()``. The first call also tries forward and loss on the batch.

        Args:
            x: The inputs before augmentation; a mapping for a network with keyword arguments. Sequences of tokens may
                have another length in each batch.
            y: The labels; a mapping ``{name: tensor}`` for several targets. Without it they are the entry ``labels`` of
                ``x``. Examples whose labels are all -100 (floats: NaN) have none and are left out of finetunings.
            logits: The network's output in this step's forward pass; ``distill`` needs it.

        Returns:
            What the finetuning did, if there was one; an ``Outcome`` if it was measured on held-out examples.
        """
        self.settle()
        rows = self._checks.rows(x, y, logits, self.buffer)
        self._checks.check_network()
        try:
            if not self._repairer.advance(size_of(rows)):
                return None
            return self._repair()
        finally:
            self.buffer.offer(rows)  # also if the repair fails: the training step was made
            if self.objective.shifts:
                self._repairer.recall(self.buffer)

    def remember(self, x: Inputs, y: Targets | None = None, logits: Tensor | None = None) -> None:
        """Offer examples to the buffer outside of training. With "distinct" they have shares of their own."""
        self.settle(start=False)
        rows = self._checks.rows(x, y, logits, self.buffer)
        self._checks.check_tokens(rows)
        self.buffer.offer(rows, remembered=True)
        self._repairer.recall(self.buffer, now=True)

    def boundary(self) -> None:
        """Announce that the data shifts here. Shifts are then no longer detected. No effect before the first step."""
        if self.step:
            self._repairer.recall(self.buffer, now=True)
            self._repairer.boundary()
            self.buffer.period += 1

    def finish(self) -> Report | Finetuned | None:
        """Repair once more, at the end of the stream. Training may continue afterwards, and finish again.

        Returns:
            A report of what the repair did and cost; on the paper's schedule, what the finetuning did. None, with a
            warning, if everything is frozen, or if the schedule chose no group.
        """
        if lack := _lack(self.buffer, self.processes):
            raise ValueError(lack)
        done: Report | Finetuned | None = self._repairer.finish(with_labels(self.buffer), self._generator)
        if done is None:
            warn(f"nothing was finetuned in {self.step} steps: {self._repairer.why_not()}", stacklevel=2)
        self.buffer.period += 1
        return done

    def sensitivities(self) -> dict[str, float]:
        """Return S_g of each group, averaged over all shifts so far; empty before the first, and with a budget."""
        return self._repairer.sensitivities()

    def profile(self) -> Profile:
        """Return which groups forget and which are repaired; it prints as a table."""
        return self._repairer.profile()

    def state_dict(self) -> dict[str, Any]:
        """Return all that this process's later calls depend on besides the network, as tensors and plain data."""
        return {
            "format": FORMAT,
            "processes": [self.processes.rank, self.processes.count],
            "generator": self._generator.get_state(),
            "buffer": self.buffer.state_dict(),
            self._kind: self._repairer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from ``state``; load the network separately. Warns of another budget or other schedule settings."""
        self.settle(start=False)
        check_state(state, self._kind, self.processes, self.settings.distill)
        buffer, _ = _open_memory(self.model, self._memory, self.buffer.device, self.processes)
        buffer.load_state_dict(state["buffer"])
        self._checks.check_tokens(state["buffer"]["columns"], *state["buffer"].get("staged", ()))
        self._repairer.load_state_dict(state[self._kind])
        self.buffer = buffer  # only now, so that a state that does not fit changes nothing
        self._checks.tried = False
        self._generator.set_state(state["generator"].cpu())

    def _join(self) -> None:
        """Take this process's part of the buffer and of the batches."""
        self.processes = Processes(self._group)
        self._repairer.join(self.processes)
        self.processes.share(self.settings.batch, "batch")  # raises an error if there are more processes
        device = self._device or _home(self.model)
        self.buffer, self._generator = _open_memory(self.model, self._memory, device, self.processes)

    def _repair(self) -> Finetuned | Outcome | None:
        """Repair during training, or warn once that there is nothing to repair or to repair it with."""
        done: Finetuned | Outcome | None = None
        repairer, buffer = self._repairer, with_labels(self.buffer) if has_labels(self.buffer) else None
        if all(self.processes.gather(buffer is not None and repairer.ready(self.buffer) and repairer.ready(buffer))):
            done = repairer.finetune(buffer or self.buffer, self._generator)
            lack = repairer.why_not() if done is None else ""
        else:
            lack = _lack(self.buffer, self.processes)
        if lack and not self._warned and self.step > 1:
            self._warned = True
            warn(f"a finetuning was due at step {self.step}, but nothing was finetuned: {lack}", stacklevel=3)
        return done


def _home(model: nn.Module) -> torch.device:
    return compute_device(unwrap(model))


def _open_memory(
    model: nn.Module, memory: Memory, device: torch.device | None, processes: Processes
) -> tuple[Buffer, torch.Generator]:
    """Return this process's part of the buffer, empty, and the generator of its draws."""
    seed = memory.seed + 1_000_003 * processes.rank
    capacity = processes.share(memory.capacity, "capacity")
    common = memory.seed if memory.policy == "distinct" else seed  # the same keys in all processes
    buffer = Buffer(capacity, policy=memory.policy, device=device, seed=common, pad=padding_token(model))
    return buffer, torch.Generator(device).manual_seed(seed + 1)


def _resolve(
    schedule: dict[str, Any], tracking: dict[str, Any], budget: float | None, common: dict[str, Any], *, language: bool
) -> tuple[Finetune, Tracking]:
    """Return the settings of the repairs: on a schedule if one of its settings has a value, else within a budget."""
    given = {name: value for name, value in (schedule | tracking).items() if value is not None}
    if not given:
        default = LANGUAGE_BUDGET if language else BUDGET
        common = {"batch": LANGUAGE_BATCH if language else Finetune.batch} | common
        return Finetune.within(default if budget is None else budget, **common), Tracking()
    if budget is not None:
        name, value = next(iter(given.items()))
        raise ValueError(f"{name} is {value}, but budget is {budget}: a budget replaces the schedule; give one")
    make = Finetune.k_fpf if "every" in given else Finetune
    scheduled = {name: value for name, value in given.items() if name in schedule}
    tracked = {name: value for name, value in given.items() if name in tracking}
    return make(**scheduled, **common), Tracking(**tracked)


def _lack(buffer: Buffer, processes: Processes) -> str:
    """Return which buffers have no example with a label, in words; "" if all have. Else no process finetunes."""
    own = "" if has_labels(buffer) else UNLABELLED if buffer.seen else EMPTY
    lacking = {rank: text for rank, text in enumerate(processes.gather(own)) if text}
    where = f" of process {', '.join(map(str, lacking))}" if processes.count > 1 else ""
    return f"the buffer{where} {next(iter(lacking.values()))}" if lacking else ""
