"""Batch norm as the networks here use it: with the sum and the ReLU that follow it, and for several passes at once.

    y = relu(w · (x − μ) / √(σ² + ε) + b + residual),   μ and σ² of each pass of its own

``passes`` = p says that the batch is p batches one after the other, each normalised by its own statistics, as if the
network had been called p times; the running statistics move as often. On a GPU that is four kernels forward and
backward together (``norm_cuda``); elsewhere PyTorch's own layers.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forgetless.compute import kernels


def batch_norm(
    bn: nn.BatchNorm2d, x: Tensor, *, relu: bool = False, residual: Tensor | None = None, passes: int = 1
) -> Tensor:
    if fused(bn, x, x.dtype):
        from forgetless.compute.kernels import norm as norm_cuda  # imports Triton

        return norm_cuda.batch_norm(bn, x, relu=relu, residual=residual, passes=passes)
    y = bn(x) if passes == 1 or not bn.training else torch.cat([bn(part) for part in x.chunk(passes)])
    if residual is not None:
        y = y + residual
    return F.relu(y) if relu else y


def fused(bn: nn.BatchNorm2d, x: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels serve: a layer in training mode on a GPU, with weights and averages of a fixed rate."""
    return (
        kernels.serve(x)
        and bn.training
        and type(bn) is nn.BatchNorm2d
        and bn.track_running_stats
        and bn.affine
        and bn.momentum is not None
        and dtype in (torch.float32, torch.bfloat16)
    )


def count_batches(norms: Iterable[nn.BatchNorm2d], x: Tensor, passes: int) -> None:
    """The layers' own counters of batches, which the kernels leave to this one call."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    counters = [bn.num_batches_tracked for bn in norms if bn.num_batches_tracked is not None and fused(bn, x, dtype)]
    if counters:
        torch._foreach_add_(counters, passes)
