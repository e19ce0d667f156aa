"""Cross-entropy, on a GPU with its gradient in one kernel."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from forgetless.compute import kernels


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """``F.cross_entropy(logits, y)``, then what ``torch.autograd.grad`` is to begin from and along which gradient.

    That is the loss itself, or, where the kernel gave the gradient with respect to the logits, these.
    """
    if kernels.serve(logits):
        from forgetless.compute.kernels import cross_entropy as cross_entropy_cuda

        if cross_entropy_cuda.serves(logits, y):
            loss, along = cross_entropy_cuda.cross_entropy(logits, y)
            return loss, logits, along
    loss = F.cross_entropy(logits, y)
    return loss, loss, None
