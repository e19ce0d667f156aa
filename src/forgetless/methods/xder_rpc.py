"""X-DER with a regular polytope classifier (Boschini et al. 2022, with the classifier of Pernici et al. 2021).

    s_c(x) = f(x) · w_c,   w_c = √(C / (C − 1)) · (e_c − 1/C)     fixed: the vertices of a regular simplex
    L = CE(s(x) over the task's classes) + α · MSE(s(x'), z') + β · CE(s(x'') over past classes, y'') + η · (F + P)

(x', z') and (x'', y'') are independent draws from the buffer, as in DER++. F and P are constraints: the mean of
max_other s + m − max_own s over the examples for which it is above 0. Own classes are those of the example's task. In
F the others are the future classes, for the batch, x' and x''. In P they are the past classes, for the batch alone,
and no gradient reaches them.

The buffer has equal shares of all classes seen. It is filled at the end of a task with scores of that time. Later
tasks teach the network more about old examples: when x' or x'' is replayed for the n-th time in a task, its scores of
the present and future classes replace the stored ones with the probability 1/n, so that they are a uniform sample of
the task. The end of the task replaces all of them. Stored scores of classes outside an example's own task are scaled
such that the largest is at most γ times the label's.

The w_c have length 1 and equal angles. Future classes have their place from the start. s is f(x) without its mean,
scaled, so the outputs of the network rank the classes as s does: the network predicts, and finetunes (FPF) train its
outputs. The authors' code has the vertices in C − 1 dimensions. That is a rotation: SGD moves the scores equally.

Deviations from the authors' code: P is part of the paper, but this variant of the code leaves it out. With P the
validation accuracy on Seq-digits is higher (benchmarks/records/xder-constraint.json). Factors are kept in [0, 1], since
a negative score of the label would flip signs. An example in both draws counts twice. Passes on stored examples move
the running statistics of batch norm, as in DER++. α and β are the authors' for Seq-CIFAR-100.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor

from forgetless.config.fields import setting
from forgetless.data.stream import Task
from forgetless.methods.icarl import check_exemplars
from forgetless.methods.layers import training_outputs
from forgetless.methods.learner import Batch, Learner
from forgetless.methods.method import Method


@final
@dataclass
class XDERRPC(Method):
    """Replay scores that later tasks bring up to date, with a fixed classifier that has a place for future classes."""

    memory: ClassVar[str] = "own"
    columns: ClassVar[tuple[str, ...]] = ("logits",)
    scenarios: ClassVar[tuple[str, ...]] = ("class",)
    alpha: float = setting(0.1, "Weight α of the distance to the stored scores.", least=0)
    beta: float = setting(0.5, "Weight β of the loss on the stored labels.", least=0)
    gamma: float = setting(0.85, "Bound γ of stored scores of other tasks, relative to the label's.", least=0, most=1)
    eta: float = setting(0.1, "Weight η of the constraints on past and future classes.", least=0)
    margin: float = setting(0.3, "Margin m of the constraints.", least=0)

    def begin(self, learner: Learner) -> None:
        check_exemplars(learner, "xder_rpc")
        self.replays = torch.zeros(learner.buffer.capacity, device=learner.device)  # of each slot in this task

    def step(self, learner: Learner, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        past, seen = learner.seen(batch.task - 1), learner.seen(batch.task)
        draws = [draw(learner), draw(learner)] if past else []
        stored = [{name: learner.buffer[name].index_select(0, rows) for name in ("x", "y", "logits")} for rows in draws]
        outputs = learner.forward_each(batch.x, *(old["x"] for old in stored))
        scores, *old_scores = [class_scores(output) for output in outputs]

        loss = F.cross_entropy(learner.within_task(scores, batch.task), batch.y)
        if past:
            loss = loss + self.alpha * F.mse_loss(old_scores[0], stored[0]["logits"])
            loss = loss + self.beta * F.cross_entropy(old_scores[1][:, :past], stored[1]["y"])
            others = scores[:, :past].amax(1).detach()
            loss = loss + self.eta * violation(others, own_maximum(learner, scores, batch.y), self.margin)
        if seen < learner.classes:
            all_scores = torch.cat([scores, *old_scores])
            own = own_maximum(learner, all_scores, torch.cat([batch.y, *(old["y"] for old in stored)]))
            loss = loss + self.eta * violation(all_scores[:, seen:].amax(1), own, self.margin)
        learner.update(loss)

        for rows, new_scores in zip(draws, old_scores, strict=True):
            self._refresh(learner, rows, new_scores.detach(), past)
        return loss.detach(), {"logits": scores.detach()}

    def _refresh(self, learner: Learner, rows: Tensor, scores: Tensor, past: int) -> None:
        """Replace stored scores of the classes from ``past`` on, with the probability 1/n at the n-th replay."""
        replays = self.replays.index_select(0, rows) + 1
        self.replays.index_copy_(0, rows, replays)
        chosen = torch.rand(len(rows), generator=learner.generator, device=learner.device) * replays < 1
        stored, y = learner.buffer["logits"], learner.buffer["y"].index_select(0, rows)
        old = stored.index_select(0, rows)
        new = with_scores(old, scores, y, slice(past, None), self.gamma)
        stored.index_copy_(0, rows, torch.where(chosen[:, None], new, old))

    @torch.no_grad()
    def end_task(self, learner: Learner, task: Task, number: int) -> None:
        past, seen, capacity = learner.seen(number - 1), learner.seen(number), learner.buffer.capacity
        parts = []  # images, labels and scores: of the past, then of this task
        if past:
            rows = sample_classes(learner.buffer["y"], dict.fromkeys(range(past), capacity // seen), learner.generator)
            x, y, old = (learner.buffer[name][rows] for name in ("x", "y", "logits"))
            scores = class_scores(training_outputs(learner, x))
            parts.append((x, y, with_scores(old, scores, y, slice(past, None), self.gamma)))
        room = capacity - sum(len(y) for _, y, _ in parts)
        shares = {label: (room + place) // len(task.classes) for place, label in enumerate(task.classes)}
        new = task.train.subset(sample_classes(task.train.y, shares, learner.generator))
        scores = class_scores(training_outputs(learner, new.x))
        parts.append((new.x, new.y, with_scores(scores, scores, new.y, slice(past), self.gamma)))
        x, y, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        learner.buffer.replace({"x": x, "y": y, "logits": logits})
        learner.spend("memory", len(y))
        self.replays.zero_()


def draw(learner: Learner) -> Tensor:
    """Return slots of the buffer drawn without replacement."""
    slots = torch.randperm(len(learner.buffer), generator=learner.generator, device=learner.device)
    return slots[: learner.replay_size]


def sample_classes(y: Tensor, shares: Mapping[int, int], generator: torch.Generator) -> Tensor:
    """Return rows of at most ``shares[label]`` random examples of each class, in random order."""
    order = torch.randperm(len(y), generator=generator, device=y.device)
    rows = torch.cat([order[y[order] == label][:share] for label, share in shares.items()])
    return rows[torch.randperm(len(rows), generator=generator, device=y.device)]  # so that batches mix the classes


def class_scores(outputs: Tensor) -> Tensor:
    """Return the products of outputs with the vertices of a regular simplex, one per class."""
    classes = outputs.shape[1]
    return math.sqrt(classes / (classes - 1)) * (outputs - outputs.mean(1, keepdim=True))


def own_maximum(learner: Learner, scores: Tensor, y: Tensor) -> Tensor:
    """Return the highest score of each example among the classes of its task."""
    tasks = (~learner.foreign).index_select(1, y).long().argmax(0)
    return scores.masked_fill(learner.foreign[tasks], -torch.inf).amax(1)


def violation(others: Tensor, own: Tensor, margin: float) -> Tensor:
    """Return the mean of others + margin − own where it is above 0; 0 if it is so nowhere."""
    gaps = (others + margin - own).clamp(min=0)
    return gaps.sum() / (gaps > 0).sum().clamp(min=1)


def with_scores(old: Tensor, new: Tensor, y: Tensor, classes: slice, gamma: float) -> Tensor:
    """Return ``old`` with the new scores of these classes, scaled to at most γ times the old score of the label."""
    scores = new[:, classes]
    if not scores.shape[1]:
        return old
    label, largest = old.gather(1, y[:, None]), scores.amax(1, keepdim=True)
    factor = torch.where(largest > label, (gamma * label / largest).clamp(0, 1), 1.0)
    result = old.clone()
    result[:, classes] = factor * scores
    return result
