"""The slots of a reservoir in one Triton kernel instead of a dozen, for ``memory/samplers.py``.

It saves 16 % of an ER step of the MLP on an H200 (benchmarks/records/ablation-mlp-h200.json).
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _slots(numbers, counter, slots, size, capacity, SIZE: tl.constexpr):
    """Write the slots of all examples in one program."""
    example = tl.arange(0, SIZE)
    seen = tl.load(counter)
    count = seen + example
    number = tl.load(numbers + example, example < size, other=0)
    slot = tl.minimum(tl.where(count < capacity, count, number % (count + 1)), capacity)
    slot = tl.where(example < size, slot, -1 - example)
    later = (slot[:, None] == slot[None, :]) & (example[None, :] > example[:, None])
    slot = tl.where(tl.sum(later.to(tl.int32), 1) > 0, capacity, slot)
    tl.store(slots + example, slot, example < size)
    tl.debug_barrier()
    tl.store(counter, seen + size)


def reservoir_slots(numbers: Tensor, counter: Tensor, capacity: int) -> Tensor:
    """Return the slot of each example, ``capacity`` if it is rejected, and advance ``counter`` by their number."""
    slots = torch.empty_like(numbers)
    with torch.cuda.device_of(numbers):
        size = max(16, triton.next_power_of_2(len(numbers)))
        _slots[(1,)](numbers, counter, slots, len(numbers), capacity, size)
    return slots
