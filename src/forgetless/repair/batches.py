"""Examples as columns of a buffer, and checks that they fit a network."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.repair.buffer import Buffer

NO_LABEL = -100  # the label that cross-entropy ignores
OTHER_LOSS = ". If you train with another loss than cross-entropy, give it: loss=…"


def pack(
    x: Tensor | Mapping[str, Tensor], y: Tensor, logits: Tensor | None = None, distill: float = 0.0
) -> dict[str, Tensor]:
    """Return a batch as columns of a buffer: ``x`` (a mapping becomes ``x.<key>``), ``y`` and perhaps ``logits``."""
    if not isinstance(logits, Tensor | None):
        raise TypeError(f"logits is a {type(logits).__name__}; give the tensor in it, such as output.logits")
    inputs = {f"x.{key}": value for key, value in x.items()} if isinstance(x, Mapping) else {"x": x}
    if not distill:
        return {**inputs, "y": y}
    if logits is None:
        raise ValueError(f"distill is {distill}, which needs logits: call observe(x, y, logits)")
    return {**inputs, "y": y, "logits": logits}


def unpack(rows: Mapping[str, Tensor]) -> Any:
    """Return the input among a buffer's columns: ``x``, or a mapping of the columns ``x.<key>``."""
    if "x" in rows:
        return rows["x"]
    return {name.removeprefix("x."): column for name, column in rows.items() if name.startswith("x.")}


def call(model: nn.Module, x: Any) -> Tensor:
    """Return the logits of ``model`` for ``x``; a mapping becomes keyword arguments (Hugging Face's batches)."""
    output = model(**x) if isinstance(x, Mapping) else model(x)
    if isinstance(output, Mapping) and "logits" in output:
        output = output["logits"]
    if not isinstance(output, Tensor):
        raise TypeError(
            f"the network returned {type(output).__name__}, not a tensor of logits: give forward=(model, x) -> logits"
        )
    return output


def check_arguments(model: nn.Module, x: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` if the network does not take the entries of ``x`` as keyword arguments."""
    try:
        inspect.signature(unwrap(model).forward).bind(**x)
    except TypeError as error:
        raise TypeError(
            f"x is a mapping, so the network is called with the keyword arguments {', '.join(x)}: {error}. If it takes "
            "the mapping itself, give forward=lambda model, x: model(x)"
        ) from None


def class_labels(y: Tensor) -> Tensor:
    """Return class labels of any integer dtype as cross-entropy expects them; probabilities stay."""
    return y if y.is_floating_point() else y.long()


def check_buffer(buffer: Buffer, distill: float) -> None:
    """Raise ``ValueError`` if the buffer does not hold what a finetuning needs."""
    if not len(buffer):
        raise ValueError("the buffer is empty: there is nothing to finetune on. Add examples first")
    columns = buffer.columns
    inputs = any(column == "x" or column.startswith("x.") for column in columns)
    present = {"x": inputs, "y": "y" in columns, "logits": not distill or "logits" in columns}
    for column, is_present in present.items():
        if not is_present:
            why = f"distill is {distill}, which needs" if column == "logits" else "finetuning needs"
            several = " (or 'x.<name>' for several inputs)" if column == "x" else ""
            raise ValueError(f"{why} the column {column!r}{several}; the buffer has {', '.join(columns)}")


def check_labels(y: Tensor, logits: Tensor, values: bool = True) -> None:
    """Raise ``ValueError`` unless ``y`` holds classes, or class probabilities, for ``logits``. ``NO_LABEL`` is valid.

    Without ``values`` only the shape is checked, which needs no GPU-to-CPU sync.
    """
    if logits.ndim < 2:
        raise ValueError(
            f"the network's output has shape {tuple(logits.shape)}; it must be (batch, classes){OTHER_LOSS}"
        )
    probabilities = y.is_floating_point()
    wanted = (*y.shape[:1], *(logits.shape[1:] if probabilities else logits.shape[2:]))
    if tuple(y.shape) != wanted:
        what = "labels of a float dtype are probabilities and" if probabilities else "class labels"
        raise ValueError(
            f"y has shape {tuple(y.shape)}; for logits of shape {tuple(logits.shape)} {what} must have "
            f"{wanted}{OTHER_LOSS}"
        )
    if not values or not y.numel():
        return
    classes = logits.shape[1]
    if y.is_floating_point():
        if classes < 2 or not bool(((y >= 0).all(1) & ((y.float().sum(1) - 1).abs() < 0.02)).all()):
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
            f"{classes - 1}{OTHER_LOSS}"
        )
