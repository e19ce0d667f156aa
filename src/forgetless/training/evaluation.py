"""Accuracy on the test sets of all tasks; changes nothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from forgetless.data.stream import Stream
from forgetless.methods import Method
from forgetless.methods.learner import Learner, evaluating
from forgetless.repair.finetune import NonFiniteError


class Accuracies(NamedTuple):
    """In percent, one a task: with all classes competing (class-IL), and with only those of the task (task-IL)."""

    class_il: list[float]
    task_il: list[float]


class _Sheet:
    """What an evaluation reads and writes, in its place on the device."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self.stream = stream
        self.right = torch.zeros(3, len(stream.tasks), device=device)  # class-IL, task-IL; and those that are NaN
        self.sizes = torch.tensor([len(task.test) for task in stream.tasks])


@torch.no_grad()
def evaluate(learner: Learner, method: Method, stream: Stream, batch: int = 1000) -> Accuracies:
    """The host waits once, at the end.

    Captured where the network alone predicts (a method's own way may have a state) and the images are on the device.
    Class-IL is by ``predict``; task-IL by ``predict_task`` where the method has one, else by the same scores.
    """
    engine = learner.engine
    key = ("evaluate", id(stream), batch)
    sheet = engine.keep(key, lambda: _Sheet(stream, learner.device))
    on_device = all(task.test.x.device == task.test.y.device for task in stream.tasks)
    if type(method).predict is Method.predict and not _knows_tasks(method) and on_device:
        engine.call(key, lambda: _count(sheet, learner, method, batch))
    else:
        _count(sheet, learner, method, batch)
    right = sheet.right.cpu()
    for number, (lost, size) in enumerate(zip(right[2].tolist(), sheet.sizes.tolist(), strict=True), start=1):
        if lost:
            raise NonFiniteError(
                f"the outputs for {lost:.0f} of the {size} test images of task {number} of {stream.name!r} are NaN: "
                "are the images finite, and the weights?"
            )
    rows: list[list[float]] = (100 * right / sheet.sizes).tolist()
    return Accuracies(rows[0], rows[1])


def _count(sheet: _Sheet, learner: Learner, method: Method, batch: int) -> None:
    """How many test examples of each task are classified right: among all classes, among those of the task."""
    sheet.right.zero_()
    with evaluating(learner.network):
        for number, task in enumerate(sheet.stream.tasks):
            for images, y in zip(task.test.x.split(batch), task.test.y.split(batch), strict=True):
                x = learner.plain(images)
                scores = method.predict(learner, x)
                if not isinstance(scores, Tensor):
                    raise ValueError(f"the network returns a {type(scores).__name__}; it must return logits, a tensor")
                if scores.shape[1:] != learner.foreign.shape[1:]:
                    raise ValueError(
                        f"the network gives outputs of shape {tuple(scores.shape[1:])}; stream {sheet.stream.name!r} "
                        f"has {learner.classes} classes, so there must be {learner.classes} of them"
                    )
                of_task = method.predict_task(learner, x, number) if _knows_tasks(method) else scores
                among_task = of_task.masked_fill(learner.foreign[number], -torch.inf)
                best, chosen = scores.max(1)
                hits = [(chosen == y).sum(), (among_task.argmax(1) == y).sum(), best.isnan().sum()]
                sheet.right[:, number] += torch.stack(hits)


def _knows_tasks(method: Method) -> bool:
    """Whether it predicts in another way where the task is known."""
    return type(method).predict_task is not Method.predict_task
