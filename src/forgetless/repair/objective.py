"""What a finetuning minimises, CE(y, f(x)) + λ · MSE(z, f(x)), and how examples become columns of a buffer.

z are the logits stored with x. λ is ``distill``: 0 for FPF and k-FPF-CE, above 0 for k-FPF-KD.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute.modules import unwrap
from forgetless.repair.buffer import Buffer

Loss = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[nn.Module, Any], Tensor]
Augment = Callable[[Any], Any]

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
    logits: Tensor = output.get("logits", output) if isinstance(output, Mapping) else output
    return logits


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


def check_labels(y: Tensor, logits: Tensor, values: bool = True) -> None:
    """Raise ``ValueError`` unless ``y`` fits ``logits``; only by shape without ``values``, which needs no sync."""
    shape, probabilities = tuple(logits.shape), y.is_floating_point()
    if logits.ndim < 2:
        raise ValueError(f"the network's output has shape {shape}; it must be (batch, classes){OTHER_LOSS}")
    expected = (*y.shape[:1], *(shape[1:] if probabilities else shape[2:]))
    if tuple(y.shape) != expected:
        what = "labels of a float dtype are probabilities and" if probabilities else "class labels"
        raise ValueError(
            f"y has shape {tuple(y.shape)}; for logits of shape {shape} {what} must have {expected}{OTHER_LOSS}"
        )
    if not values or not y.numel():
        return
    classes = shape[1]
    if probabilities:
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


@dataclass(frozen=True)
class Objective:
    """The functions that turn a batch of the buffer into a loss."""

    augment: Augment | None = None  # applied to the inputs drawn from the buffer
    loss: Loss | None = None  # replaces cross-entropy
    forward: Forward = call
    autocast: torch.dtype | None = None  # the dtype of the forward pass

    def __post_init__(self) -> None:
        if self.autocast == torch.float16:
            raise ValueError("autocast is torch.float16, which needs a gradient scaler; use torch.bfloat16")

    def value(self, logits: Tensor, rows: Mapping[str, Tensor], distill: float) -> Tensor:
        """Return the loss of a batch, given the logits for it."""
        if self.loss is None:
            value = F.cross_entropy(logits, class_labels(rows["y"]))
        else:
            value = self.loss(logits, rows["y"])
            if not isinstance(value, Tensor) or value.ndim:
                kind = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"loss returned a {kind}; it must return one number, as a tensor with a gradient")
        if distill:
            value = value + distill * F.mse_loss(logits.float(), rows["logits"].float())
        return value

    def examples(self, y: Tensor, distill: float) -> int | Tensor:
        """Return the number of labels over which the loss is a mean; cross-entropy ignores ``NO_LABEL``."""
        if self.loss is None and not distill and not y.is_floating_point():
            return (class_labels(y) != NO_LABEL).sum()
        return len(y)

    def check(self, buffer: Buffer, logits: Tensor, drawn: int, distill: float) -> None:
        """Raise ``ValueError`` if the stored labels and logits do not fit the logits for ``drawn`` examples."""
        if self.loss is None:
            check_labels(buffer["y"], logits)
        if (self.loss is None or distill) and len(logits) != drawn:
            raise ValueError(
                f"augment or forward made {len(logits)} rows of logits from {drawn} examples; it must keep their number"
            )
        if distill and buffer["logits"].shape[1:] != logits.shape[1:]:
            stored, now = tuple(buffer["logits"].shape[1:]), tuple(logits.shape[1:])
            raise ValueError(
                f"the stored logits have shape {stored}, the network's have {now}; distill needs them equal"
            )
