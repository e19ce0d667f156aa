"""Events of a run: frozen values that progress bars, loggers, checkpoints and records read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from forgetless.repair.profile import Profile


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
class Waiting:
    """The host is about to read from the GPU: the next event comes when what is queued there is done."""


@dataclass(frozen=True)
class EpochEnded:
    task: int
    epoch: int
    loss: float
    changes: dict[str, float]  # by group, since the last epoch
    step: int  # the last of the epoch


@dataclass(frozen=True)
class Repaired:
    """A finetuning was made: after this step, of these groups, with these first and last losses."""

    step: int
    groups: tuple[str, ...]
    first_loss: float
    last_loss: float


@dataclass(frozen=True)
class Trained:
    """The last task is learned and evaluated, and the finetuning at the end comes next.

    Of a run with FPF, a state from here may go on with another ``finetune`` that is FPF and distils or not as this one,
    or with none: the training is the same for all of them.
    """

    step: int


@dataclass(frozen=True)
class TaskEnded:
    task: int
    accuracies: tuple[float, ...]  # class-IL, of all tasks, in percent
    task_il: tuple[float, ...]  # likewise, with the task known
    step: int  # the last of the task
    seen: int  # tasks that were trained on by now: all of them where they are given at once


@dataclass(frozen=True)
class Result:
    """All that a run found out. Matrices are [after task][on task], in percent.

    Their last row is after any finetuning at the end, with ``anytime`` every row is; ``before_finetuning`` is the last
    one before it.
    """

    accuracy_matrix: tuple[tuple[float, ...], ...]
    task_il_matrix: tuple[tuple[float, ...], ...]
    untrained: tuple[float, ...]
    before_finetuning: tuple[float, ...] | None
    losses: tuple[tuple[int, int, float], ...]  # (task, epoch, mean loss)
    epoch_changes: tuple[tuple[int, int, dict[str, float]], ...]  # (task, epoch, change by group)
    task_changes: tuple[tuple[int, int, dict[str, float]], ...]
    tensor_changes: dict[str, list[float]]  # of each tensor from one task to the next, mean over epochs
    boundaries: tuple[int, ...]  # rows of ``epoch_changes`` at which the changes alone tell that a new task begins
    profile: Profile
    finetunings: tuple[Repaired, ...]
    flops: dict[str, int]
    seconds: dict[str, float]
    steps: int
    network: nn.Module
    engine: dict[str, Any]  # how it was computed: precision, captured, peak memory


@dataclass(frozen=True)
class Ended:
    result: Result


Event = Began | Stepped | Waiting | EpochEnded | Repaired | Trained | TaskEnded | Ended
