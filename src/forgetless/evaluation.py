"""Accuracy on the test sets of all tasks; changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forgetless.learner import Learner, evaluating
from forgetless.methods import Method
from forgetless.stream import Stream


class Accuracies(NamedTuple):
    """In percent, one a task: with all classes competing (class-IL), and with only those of the task (task-IL)."""

    class_il: list[float]
    task_il: list[float]


@torch.no_grad()
def evaluate(learner: Learner, method: Method, stream: Stream, batch: int = 1000) -> Accuracies:
    """The host waits once, at the end."""
    right: list[Tensor] = []
    with evaluating(learner.network):
        for task in stream.tasks:
            absent = torch.full((stream.classes,), -torch.inf, device=learner.device)
            absent[list(task.classes)] = 0.0
            hits = torch.zeros(2, device=learner.device)
            for x, y in zip(task.test.x.split(batch), task.test.y.split(batch), strict=True):
                scores = method.predict(learner, learner.plain(x))
                among_task = torch.where(absent < 0, absent, scores)
                hits += torch.stack([(scores.argmax(1) == y).sum(), (among_task.argmax(1) == y).sum()])
            right.append(100 * hits / len(task.test))
    rows: list[list[float]] = torch.stack(right, 1).tolist()
    return Accuracies(rows[0], rows[1])
