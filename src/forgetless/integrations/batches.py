"""Join the batches of one optimiser step."""

from collections.abc import Sequence

import torch
from torch import Tensor

from forgetless.repair.objective import Inputs, Targets, pack, unpack

Observation = tuple[Inputs, Targets, Tensor | None]  # a batch as ``FPF.observe`` takes it: x, y, logits


def joined(batches: Sequence[Observation]) -> Observation:
    """Return several batches as one."""
    if len(batches) == 1:
        return batches[0]
    columns = [pack(x, y, logits, distill=float(logits is not None)) for x, y, logits in batches]
    for name in columns[0]:
        shapes = sorted({tuple(part[name].shape[1:]) for part in columns})
        if len(shapes) > 1:
            raise ValueError(
                f"{name}: accumulated batches hold examples of the shapes {shapes[0]} and {shapes[1]}; the buffer "
                'needs one shape: pad to one length (padding="max_length")'
            )
    rows = {name: torch.cat([part[name] for part in columns]) for name in columns[0]}
    return unpack(rows), unpack(rows, "y"), rows.get("logits")
