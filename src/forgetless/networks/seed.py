"""Build a network from a seed."""

from collections.abc import Callable

import torch
from torch import nn


def with_seed(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a network whose initial weights come from ``seed``, and leave the global random state unchanged."""
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also seed the GPUs
        return build()
