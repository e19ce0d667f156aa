"""A step along gradients, in place: θ ← θ − rate · g.

In bf16 on a GPU the gradients of matrices can come as they were computed (``Engine.sources``). A kernel then reads
them as they are; to cast them first would write and read them once more, in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from forgetless.compute import kernels


@torch.no_grad()
def descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rate: float = 1.0) -> None:
    short: list[tuple[Tensor, Tensor]] = []
    alike: list[tuple[Tensor, Tensor]] = []
    for p, g in zip(parameters, gradients, strict=True):
        cast = p.dtype == torch.float32 and g.dtype == torch.bfloat16 and kernels.serve(p)
        (short if cast else alike).append((p, g))
    if short:
        from forgetless.compute.kernels import descent as descent_cuda

        descent_cuda.descend([p for p, _ in short], [g for _, g in short], rate)
    if alike:
        torch._foreach_add_([p for p, _ in alike], [g for _, g in alike], alpha=-rate)
