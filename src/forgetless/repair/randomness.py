"""Draw random numbers without disturbing those of the user."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def untouched_randomness(generator: torch.Generator) -> Iterator[None]:
    """Seed the global random states from ``generator`` inside a ``with`` block, and restore them afterwards.

    These are torch's on the CPU and CUDA, ``random``'s and numpy's; augmentation and dropout draw from them.
    """
    seed = draw_seed(generator)
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = None if numpy is None else numpy.random.get_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed also seeds devices that were never used
        for device in devices:
            torch.cuda.default_generators[device].manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def draw_seed(generator: torch.Generator) -> int:
    """Return a seed drawn from ``generator``."""
    return int(torch.randint(2**31, (), generator=generator, device=generator.device))
