"""The events of a run: frozen values that progress bars, loggers, checkpoints and records read.

Tasks and epochs count from 1. ``step`` is the number of training steps taken so far.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from forgetless.repair.profile import Profile


@dataclass(frozen=True)
class Began:
    """The run is about to train, on this number of tasks and in this number of steps.

    A run that resumes begins at a later task, after the steps that were taken before.
    """

    tasks: int
    steps: int
    task: int = 1
    step: int = 0


@dataclass(frozen=True)
class Stepped:
    """Some more steps were taken. This event costs no GPU-to-CPU sync."""

    step: int
    task: int
    epoch: int


@dataclass(frozen=True)
class Waiting:
    """A GPU-to-CPU sync comes next: the next event arrives when the queued work is done."""


@dataclass(frozen=True)
class EpochEnded:
    """An epoch of a task is over, with this mean loss."""

    task: int
    epoch: int
    loss: float
    changes: dict[str, float]  # how far each group moved since the last epoch
    step: int


@dataclass(frozen=True)
class Repaired:
    """Groups were repaired after this step.

    The losses are those of the first and the last step of the finetuning; with a budget, those on the held-out examples
    before and after it. ``kept`` is false if a repair within a budget was undone. Short repairs that are not measured
    have no event.
    """

    step: int
    groups: tuple[str, ...]
    first_loss: float
    last_loss: float
    kept: bool = True


@dataclass(frozen=True)
class Trained:
    """The last task is learned and evaluated. The finetuning at the end comes next.

    A state saved here may resume with other FPF settings or with none, because the training is the same for all of
    them. Only whether the finetuning distils must stay the same.
    """

    step: int


@dataclass(frozen=True)
class TaskEnded:
    """A task is learned, and all tasks are evaluated, in percent."""

    task: int
    accuracies: tuple[float, ...]  # class-IL
    task_il: tuple[float, ...]
    step: int
    seen: int  # tasks trained on so far; all of them for a method that trains on all tasks at once


class EpochLoss(NamedTuple):
    """The mean loss of an epoch."""

    task: int
    epoch: int
    loss: float


class GroupChanges(NamedTuple):
    """How far each group moved up to the end of an epoch."""

    task: int
    epoch: int
    changes: dict[str, float]


@dataclass(frozen=True)
class Result:
    """What a run measured. Matrices are [after task][on task], in percent.

    The last row of a matrix is measured after the finetuning at the end; with ``anytime`` every row is measured as if
    the stream ended there.
    """

    accuracy_matrix: tuple[tuple[float, ...], ...]
    task_il_matrix: tuple[tuple[float, ...], ...]
    untrained: tuple[float, ...]
    before_finetuning: tuple[float, ...] | None  # class-IL accuracies before the finetuning at the end
    losses: tuple[EpochLoss, ...]
    epoch_changes: tuple[GroupChanges, ...]  # since the epoch before
    task_changes: tuple[GroupChanges, ...]  # since the same epoch of the task before
    tensor_changes: dict[str, list[float]]  # of each tensor from one task to the next, mean over epochs
    boundaries: tuple[int, ...]  # rows of ``epoch_changes`` at which the changes alone reveal a new task
    profile: Profile
    finetunings: tuple[Repaired, ...]
    flops: dict[str, int]
    seconds: dict[str, float]
    steps: int
    network: nn.Module
    engine: dict[str, Any]  # how the run was computed: precision, captured, peak memory


@dataclass(frozen=True)
class Ended:
    """The run is over."""

    result: Result


Event = Began | Stepped | Waiting | EpochEnded | Repaired | Trained | TaskEnded | Ended
