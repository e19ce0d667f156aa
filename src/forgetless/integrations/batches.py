"""Join the batches of one optimiser step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Inputs = Tensor | Mapping[str, Tensor]


class Observation(NamedTuple):
    """A batch as ``FPF.observe`` takes it."""

    x: Inputs
    y: Tensor
    logits: Tensor | None


def joined(batches: Sequence[Observation]) -> Observation:
    """Return several batches as one."""
    if len(batches) == 1:
        return batches[0]
    inputs, labels, logits = zip(*batches, strict=True)
    x: Inputs
    if isinstance(inputs[0], Mapping):
        x = {name: _concatenate(f"x.{name}", [part[name] for part in inputs]) for name in inputs[0]}
    else:
        x = _concatenate("x", inputs)
    return Observation(x, _concatenate("y", labels), None if logits[0] is None else _concatenate("logits", logits))


def _concatenate(name: str, parts: Sequence[Tensor]) -> Tensor:
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise ValueError(
            f"{name}: accumulated batches hold examples of the shapes {shapes[0]} and {shapes[1]}; the buffer needs "
            'one shape: pad to one length (padding="max_length")'
        )
    return torch.cat(list(parts))
