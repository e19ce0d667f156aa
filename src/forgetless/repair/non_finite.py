"""Losses and weights that became infinite or NaN: where that shows first, and why it may have happened."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from forgetless.memory.buffer import Buffer


class NonFiniteError(FloatingPointError, RuntimeError):
    """A loss or a weight became infinite or NaN. After a finetuning the network is as it was before it."""


def norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the norm of tensors together, where the first one is. It may also be infinite if they are only large."""
    norms = torch._foreach_norm([tensor for tensor in tensors if tensor.numel()])
    device = norms[0].device if norms else None  # a network may be on several
    return torch.stack([part.to(device).float() for part in norms]).norm() if norms else torch.zeros(())


def first_infinite(losses: Sequence[float], tensors: Mapping[str, Tensor]) -> str:
    """Return which loss or else which tensor is not finite, in words; "" if all are. Synchronises with the GPU."""
    steps = len(losses)
    for step, loss in enumerate(losses, start=1):
        if not math.isfinite(loss):
            return f"the loss became {loss} at step {step} of {steps}"
    names = [name for name, tensor in tensors.items() if tensor.numel()]
    if not names:
        return ""
    norms = torch._foreach_norm([tensors[name] for name in names])  # faster than the largest values, but may overflow
    device = norms[0].device  # a network may be on several
    finite = torch.stack([norm.to(device) for norm in norms]).isfinite().tolist()
    suspects = [name for name, is_finite in zip(names, finite, strict=True) if not is_finite]
    names = [name for name in suspects if not bool(tensors[name].isfinite().all())]
    return f"{names[0]} became infinite or NaN at the last of {steps} steps" if names else ""


def explain(problem: str, before: Mapping[str, Tensor], buffer: Buffer) -> NonFiniteError:
    """Return the error of a finetuning, with the cause if the network before it or the buffer shows one."""
    for name, tensor in before.items():
        if bool(tensor.isnan().any()):
            return NonFiniteError(
                f"the network already holds NaN, in {name}, before the finetuning: try a smaller learning rate in "
                "training"
            )
    rows = {name: buffer[name].reshape(len(buffer), -1) for name in buffer.columns}
    bad = {name: int((~column.isfinite().all(1)).sum()) for name, column in rows.items()}
    counts = ", ".join(f"{count} of its {len(buffer)} rows of {name}" for name, count in bad.items() if count)
    advice = "Try a smaller learning rate: of the finetuning (in a run: ft_lr), or within a budget of the training"
    if counts:
        advice = f"The buffer holds NaN or infinity: {counts}"
    return NonFiniteError(f"{problem} of the finetuning; the network is as it was before it. {advice}")
