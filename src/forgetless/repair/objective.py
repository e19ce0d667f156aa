"""What a finetuning minimises: CE(y, f(x)) + λ · MSE(z, f(x)).

z are the logits stored with x. λ is ``distill``: 0 for FPF and k-FPF-CE, above 0 for k-FPF-KD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.repair.batches import NO_LABEL, call, check_labels, class_labels
from forgetless.repair.buffer import Buffer

Loss = Callable[[Tensor, Tensor], Tensor]
Forward = Callable[[nn.Module, Any], Tensor]
Augment = Callable[[Any], Any]


@dataclass(frozen=True)
class Objective:
    """The functions that turn a batch of the buffer into a loss."""

    augment: Augment | None = None  # applied to the inputs drawn from the buffer
    loss: Loss | None = None  # replaces cross-entropy
    forward: Forward = call
    autocast: torch.dtype | None = None  # the dtype of the forward pass

    def __post_init__(self) -> None:
        for name in ("augment", "loss", "forward"):
            value = getattr(self, name)
            if not callable(value) and (value is not None or name == "forward"):
                raise ValueError(f"{name} is {value!r}; it must be a function")
        if not isinstance(self.autocast, torch.dtype | None):
            raise ValueError(f"autocast is {self.autocast!r}; it must be a dtype, such as torch.bfloat16, or None")
        if self.autocast == torch.float16:
            raise ValueError("autocast is torch.float16, which needs a gradient scaler; use torch.bfloat16")

    def is_cross_entropy(self, distill: float) -> bool:
        """Return whether the objective is cross-entropy alone."""
        return self.loss is None and not distill

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
        if self.is_cross_entropy(distill) and not y.is_floating_point():
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
