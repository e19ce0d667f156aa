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
        x = {name: torch.cat([part[name] for part in inputs]) for name in first}
    else:
        x = torch.cat(inputs)
    return x, torch.cat(labels), None if logits[0] is None else torch.cat(logits)
