"""The labels of examples: classes or probabilities, which of them are missing, and whether they fit the logits."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from forgetless.memory.batch import role

if TYPE_CHECKING:
    from forgetless.memory.buffer import Buffer

NO_LABEL = -100  # the label that cross-entropy ignores
OTHER_LOSS = ". If you train with another loss than cross-entropy, give it: loss=…"


def has_classes(y: Tensor) -> bool:
    """Return whether ``y`` holds one class per example."""
    return y.ndim == 1 and not y.is_floating_point() and not y.is_complex()


def class_labels(y: Tensor) -> Tensor:
    """Return class labels of any integer dtype as cross-entropy expects them; probabilities stay."""
    return y if y.is_floating_point() else y.long()


def class_axis(y: Tensor, logits: Tensor) -> int:
    """Return the axis of ``logits`` that holds the classes.

    It is axis 1, as for PyTorch's cross-entropy, or the last axis if only that fits class labels ``y``. If both fit, it
    is the last axis of a three-dimensional output (batch, time, vocabulary), and axis 1 of one with more dimensions
    (images).
    """
    if y.is_floating_point():
        return 1
    first, last = y.shape[1:] == logits.shape[2:], y.shape[1:] == logits.shape[1:-1]
    return logits.ndim - 1 if last and (not first or logits.ndim == 3) else 1


def check_labels(y: Tensor, logits: Tensor, values: bool = True) -> None:
    """Raise ``ValueError`` unless ``y`` fits ``logits``; only by shape without ``values``, which needs no sync."""
    shape, probabilities = tuple(logits.shape), y.is_floating_point()
    if logits.ndim < 2:
        raise ValueError(f"the network's output has shape {shape}; it must be (batch, classes){OTHER_LOSS}")
    axis = class_axis(y, logits)
    expected = (*y.shape[:1], *(shape[1:] if probabilities else shape[1:axis] + shape[axis + 1 :]))
    if tuple(y.shape) != expected:
        what = "labels of a float dtype are probabilities and" if probabilities else "class labels"
        advice = ". Class labels must be integers, such as y.long()" if probabilities else ""
        raise ValueError(
            f"y has shape {tuple(y.shape)}; for logits of shape {shape} {what} must have {expected}{advice}{OTHER_LOSS}"
        )
    if values:
        check_values(y, shape[axis])


def check_values(y: Tensor, classes: int) -> None:
    """Raise ``ValueError`` unless ``y`` holds labels or probabilities of this many classes. Synchronises."""
    if not y.numel():
        return
    if y.is_floating_point():
        valid = (y >= 0).all(1) & ((y.float().sum(1) - 1).abs() < 0.02)
        if classes < 2 or not bool((valid | y.isnan().all(1)).all()):
            raise ValueError(
                "y holds numbers that are not class probabilities: they must be 0 or more, and add up to 1 over "
                f"two or more classes{OTHER_LOSS}"
            )
        return
    labels = class_labels(y)
    low, high = torch.stack(torch.where(labels == NO_LABEL, 0, labels).aminmax()).tolist()
    if low < 0 or high >= classes:
        raise ValueError(
            f"y holds labels from {low} to {high}; the network has {classes} outputs, so they must be 0 to "
            f"{classes - 1}; {NO_LABEL} marks examples or pixels without a label{OTHER_LOSS}"
        )


def labelled(rows: Mapping[str, Tensor]) -> Tensor:
    """Return which examples have a label: those whose targets are not ``NO_LABEL`` (floats: NaN) everywhere.

    Without targets, all do.
    """
    targets = [column for name, column in rows.items() if role(name) == "y"]
    if not targets:
        first = next(iter(rows.values()))
        return torch.ones(len(first), dtype=torch.bool, device=first.device)
    present = [~y.isnan() if y.is_floating_point() else class_labels(y) != NO_LABEL for y in targets]
    return reduce(torch.logical_or, [part.flatten(1).any(1) if part.ndim > 1 else part for part in present])


def has_labels(buffer: Buffer) -> bool:
    """Return whether ``buffer`` holds an example with a label. Synchronises with the GPU."""
    return bool(len(buffer)) and bool(labelled({name: buffer[name] for name in buffer.columns}).any())


def with_labels(buffer: Buffer) -> Buffer:
    """Return ``buffer``, or a copy without the examples that have no label. Synchronises with the GPU."""
    columns = {name: buffer[name] for name in buffer.columns}
    chosen = labelled(columns)
    if bool(chosen.all()):
        return buffer
    if not bool(chosen.any()):
        raise ValueError(f"no example in the buffer has a label: every y is {NO_LABEL} or NaN")
    return buffer.subset(chosen)
