"""Measure the accuracy on the test sets of all tasks."""

from typing import NamedTuple

import torch
from torch import Tensor

from forgetless.data.stream import Stream
from forgetless.methods import Method
from forgetless.methods.learner import Learner, evaluating
from forgetless.repair.non_finite import NonFiniteError


class Accuracies(NamedTuple):
    """The accuracy on each task in percent: among all classes (class-IL), and among the task's classes (task-IL)."""

    class_il: list[float]
    task_il: list[float]


class _Counts(NamedTuple):
    """The counts of an evaluation, in a tensor that stays in place on the device so that CUDA graphs can write it."""

    stream: Stream  # kept alive, because its id is part of the graph's key
    values: Tensor  # (3, tasks): correct in class-IL, correct in task-IL, and outputs that are NaN


@torch.no_grad()
def evaluate(learner: Learner, method: Method, stream: Stream, batch: int = 1000) -> Accuracies:
    """Evaluate the network on all tasks, without changing anything. Synchronises with the GPU once.

        evaluate(learner, method, stream).class_il     # [98.1, 95.4, …]

    Args:
        learner: The network, and how images become its inputs.
        method: How to predict: by ``predict``, and where the task is known by ``predict_task`` if it has one.
        stream: The tasks.
        batch: Images per forward pass.

    Returns:
        The accuracies on all tasks.

    Raises:
        NonFiniteError: An output is NaN.
    """
    engine = learner.engine
    key = ("evaluate", id(stream), batch)
    counts = engine.persistent(key, lambda: _Counts(stream, torch.zeros(3, len(stream.tasks), device=learner.device)))
    on_device = all(task.test.x.device == task.test.y.device for task in stream.tasks)
    if type(method).predict is Method.predict and not _has_predict_task(method) and on_device:
        engine.call(key, lambda: _count(counts, learner, method, batch))
    else:  # a method's own prediction may have a state, which a CUDA graph would not follow
        _count(counts, learner, method, batch)
    values = counts.values.cpu()
    sizes = [len(task.test) for task in stream.tasks]
    for number, (nan, size) in enumerate(zip(values[2].tolist(), sizes, strict=True), start=1):
        if nan:
            raise NonFiniteError(
                f"the outputs for {nan:.0f} of the {size} test images of task {number} of {stream.name!r} are NaN: "
                "are the images finite, and the weights?"
            )
    class_il, task_il, _ = (100 * values / torch.tensor(sizes)).tolist()
    return Accuracies(class_il, task_il)


def _count(counts: _Counts, learner: Learner, method: Method, batch: int) -> None:
    """Count the correct predictions for each task: among all classes, and among the classes of the task."""
    counts.values.zero_()
    with evaluating(learner.network):
        for number, task in enumerate(counts.stream.tasks):
            for images, y in zip(task.test.x.split(batch), task.test.y.split(batch), strict=True):
                x = learner.plain(images)
                logits = method.predict(learner, x)
                if not isinstance(logits, Tensor):
                    raise ValueError(f"the network returns a {type(logits).__name__}; it must return logits, a tensor")
                if logits.shape[1:] != learner.foreign.shape[1:]:
                    raise ValueError(
                        f"the network returns outputs of shape {tuple(logits.shape[1:])}; stream "
                        f"{counts.stream.name!r} has {learner.classes} classes, so there must be {learner.classes}"
                    )
                task_logits = method.predict_task(learner, x, number) if _has_predict_task(method) else logits
                best, predicted = logits.max(1)
                predicted_in_task = learner.within_task(task_logits, number).argmax(1)
                hits = [(predicted == y).sum(), (predicted_in_task == y).sum(), best.isnan().sum()]
                counts.values[:, number] += torch.stack(hits)


def _has_predict_task(method: Method) -> bool:
    """Return whether the method predicts in another way where the task is known."""
    return type(method).predict_task is not Method.predict_task
