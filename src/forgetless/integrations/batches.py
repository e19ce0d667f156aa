"""Batches that one optimiser step has seen, as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Example = Tensor | Mapping[str, Tensor]
Observed = tuple[Example, Tensor, Tensor | None]  # inputs, labels, logits


def joined(seen: Sequence[Observed]) -> Observed:
    """Several batches as one."""
    if len(seen) == 1:
        return seen[0]
    inputs, labels, logits = zip(*seen, strict=True)
    first = inputs[0]
    x: Example
    if isinstance(first, Mapping):
        x = {name: _one(f"x.{name}", [part[name] for part in inputs]) for name in first}
    else:
        x = _one("x", inputs)
    return x, _one("y", labels), None if logits[0] is None else _one("logits", logits)


def _one(name: str, parts: Sequence[Tensor]) -> Tensor:
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise ValueError(
            f"{name}: batches whose gradients are accumulated hold examples of the shapes {shapes[0]} and {shapes[1]}; "
            'the buffer holds one shape: pad to one length (padding="max_length")'
        )
    return torch.cat(list(parts))
