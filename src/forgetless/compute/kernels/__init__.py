"""Kernels for GPUs, written in Triton, which most builds of torch for CUDA include."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def has_triton() -> bool:
    """Return whether there is a GPU and Triton is installed."""
    return torch.cuda.is_available() and find_spec("triton") is not None


def can_serve(x: Tensor) -> bool:
    """Return whether a kernel may take this tensor. Within ``torch.compile`` torch writes its own kernels."""
    return x.is_cuda and not torch.compiler.is_compiling() and has_triton()
