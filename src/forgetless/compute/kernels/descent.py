"""``descent.descend`` for gradients of another dtype than their parameters, in one Triton kernel for all of them."""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # numbers of a program
MOST = 32  # tensors of a launch


@triton.jit
def _descend(parameters, gradients, sizes, firsts, rate, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    for i in tl.static_range(COUNT):
        if (program >= firsts[i]) & (program < firsts[i + 1]):
            place = (program - firsts[i]).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            inside = place < sizes[i]
            gradient = tl.load(gradients[i] + place, inside).to(tl.float32)
            parameter = tl.load(parameters[i] + place, inside)
            tl.store(parameters[i] + place, parameter - rate * gradient, inside)


def descend(parameters: Sequence[Tensor], gradients: Sequence[Tensor], rate: float) -> None:
    gradients = [_laid_out_as(p, g) for p, g in zip(parameters, gradients, strict=True)]
    for start in range(0, len(parameters), MOST):
        some = [parameter.detach() for parameter in parameters[start : start + MOST]]
        sizes = [parameter.numel() for parameter in some]
        firsts = list(accumulate((triton.cdiv(size, BLOCK) for size in sizes), initial=0))
        with torch.cuda.device_of(some[0]):
            _descend[(firsts[-1],)](
                tuple(some), tuple(gradients[start : start + MOST]), tuple(sizes), tuple(firsts), rate,
                len(some), BLOCK, num_warps=8,
            )  # fmt: skip


def _laid_out_as(parameter: Tensor, gradient: Tensor) -> Tensor:
    """The gradient with its numbers in memory as the parameter's are."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)
