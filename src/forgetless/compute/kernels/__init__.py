"""Whether kernels of one's own can be used: they are written in Triton, which most builds of torch for CUDA bring."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def available() -> bool:
    return torch.cuda.is_available() and find_spec("triton") is not None


def serve(x: Tensor) -> bool:
    """Whether they can be used for this tensor; within ``torch.compile`` torch writes its own."""
    return x.is_cuda and not torch.compiler.is_compiling() and available()
